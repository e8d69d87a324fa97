/* The floor: the least that a fresh, fully guarded run can cost.
 *
 *   floor BASE SCRATCH none|limits|all PROGRAM [ARG...]
 *   floor --stage BASE SCRATCH PROGRAM [ARG...]    only the overlay, then PROGRAM in its place
 *   floor --filter FILE                            writes the seccomp program, for other sandboxes
 *
 * Does what "full" means in the benchmarks and nothing else: an overlay root with a tmpfs upper, a
 * user namespace with one extent, mount, pid, net, ipc, uts and cgroup namespaces, memory, pids
 * and cpu limits in v1 cgroups (or a group in each v1 hierarchy: all), proc, a small /dev, pivot_root,
 * no capabilities, no_new_privs, a seccomp decision tree, execve; then waits, and removes its groups.
 * One process, no interpreter, no policy, no check of what it did.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_ID 1879048192u /* a range that nobody on a machine uses */
#define NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

static void die(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}

/* ---- cgroups ---- */

static const char *const LIMITED[] = {"memory", "pids", "cpu", NULL};
static const char *const ALL[] = {"memory",  "pids", "cpu",   "cpuacct", "cpuset",
                                  "devices", "blkio", "freezer", "systemd", NULL};

static void group(char *path, size_t size, const char *hierarchy) {
    snprintf(path, size, "/sys/fs/cgroup/%s/casemate-floor-%d", hierarchy, getpid());
}

static void limit(const char *hierarchy, const char *file, const char *value) {
    char path[256];
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s/casemate-floor-%d/%s", hierarchy, getpid(), file);
    put(path, value);
}

static void make_groups(const char *const *names, pid_t pid) {
    char path[200], line[32];
    snprintf(line, sizeof line, "%d", pid);
    for (; *names; names++) {
        group(path, sizeof path, *names);
        if (mkdir(path, 0755)) die(path);
        if (!strcmp(*names, "memory")) limit(*names, "memory.limit_in_bytes", "536870912");
        if (!strcmp(*names, "pids")) limit(*names, "pids.max", "128");
        if (!strcmp(*names, "cpu")) limit(*names, "cpu.cfs_quota_us", "100000");
        if (!strcmp(*names, "cpuset")) {
            char all[64] = "0";
            int fd = open("/sys/fs/cgroup/cpuset/cpuset.cpus", O_RDONLY | O_CLOEXEC);
            ssize_t n = fd < 0 ? -1 : read(fd, all, sizeof all - 1);
            if (n > 0) all[n] = 0;
            close(fd);
            limit(*names, "cpuset.cpus", all);
            limit(*names, "cpuset.mems", "0");
        }
        limit(*names, "cgroup.procs", line);
    }
}

static void remove_groups(const char *const *names) {
    char path[200];
    for (; *names; names++) {
        group(path, sizeof path, *names);
        while (rmdir(path) && errno == EBUSY) usleep(50);
    }
}

/* ---- seccomp: a balanced tree over 256 runs of two numbers, as a compiled allow-list has ---- */

static struct sock_filter program[2048];
static unsigned length;

static void emit(unsigned short code, unsigned char jt, unsigned char jf, unsigned k) {
    program[length++] = (struct sock_filter){code, jt, jf, k};
}

static void tree(unsigned first, unsigned last) {
    if (last - first <= 2) {
        emit(BPF_RET | BPF_K, 0, 0, first < 460 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | ENOSYS);
        return;
    }
    unsigned middle = first + (last - first) / 2;
    unsigned here = length;
    emit(BPF_JMP | BPF_JGE | BPF_K, 0, 1, middle);
    emit(BPF_JMP | BPF_JA, 0, 0, 0);
    tree(first, middle);
    program[here].jt = 0;
    program[here].jf = 1;
    program[here + 1].k = length - here - 2;
    tree(middle, last);
}

static void assemble(void) {
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    emit(BPF_JMP | BPF_JGE | BPF_K, 0, 1, 0x40000000);
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS);
    tree(0, 512);
}

static void filter(void) {
    assemble();
    struct sock_fprog loaded = {(unsigned short)length, program};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &loaded)) die("seccomp");
}

/* ---- inside ---- */

static void drop_capabilities(void) {
    for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) && errno != EINVAL) die("bounding set");
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {0};
    if (syscall(SYS_capset, &header, none)) die("capset");
}

static void devices(void) {
    static const char *const nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
    char from[64], to[64];
    if (mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "size=64k,mode=0755")) die("/dev");
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        snprintf(from, sizeof from, "/dev/%s", nodes[i]);
        snprintf(to, sizeof to, "dev/%s", nodes[i]);
        int fd = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
        if (fd < 0) die(to);
        close(fd);
        if (mount(from, to, NULL, MS_BIND, NULL)) die(from);
    }
    if (mkdir("dev/pts", 0755) || mkdir("dev/shm", 01777)) die("dev/pts");
    if (mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"))
        die("devpts");
    if (mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=65536k")) die("shm");
    if (symlink("pts/ptmx", "dev/ptmx")) die("ptmx");
}

static void inside(int ready, char **argv) {
    char byte;
    if (read(ready, &byte, 1) != 1) _exit(125);
    if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0)) die("ids");
    /* Mounts that came with the copy are locked, so the new root has to be one of our own. */
    if (mount(".", ".", NULL, MS_BIND | MS_REC, NULL) || chdir("../root")) die("root");
    if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) die("proc");
    devices();
    if (mount("tmpfs", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=67108864")) die("tmp");
    if (sethostname("floor", 5)) die("hostname");
    if (syscall(SYS_pivot_root, ".", ".")) die("pivot_root");
    if (umount2(".", MNT_DETACH) || chdir("/")) die("old root");
    setsid();
    drop_capabilities();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
    if (syscall(SYS_close_range, 3u, ~0u, 4u)) die("close_range");
    filter();
    char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    execve(argv[0], argv, environment);
    die(argv[0]);
}

/* ---- outside ---- */

static void overlay(const char *base, const char *scratch, unsigned owner) {
    char options[1024];
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("mount namespace");
    if (mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "size=536870912,mode=0755")) die(scratch);
    if (chdir(scratch) || mkdir("upper", 0755) || mkdir("work", 0755) || mkdir("root", 0755)) die(scratch);
    if (chown("upper", owner, owner)) die("upper");
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=upper,workdir=work,volatile", base);
    if (mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options)) die("overlay");
    if (chdir("root")) die("root");
}

static int write_filter(const char *path) {
    assemble();
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    ssize_t size = (ssize_t)(length * sizeof *program);
    if (fd < 0 || write(fd, program, (size_t)size) != size) die(path);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--filter")) return write_filter(argv[2]);
    if (argc > 4 && !strcmp(argv[1], "--stage")) {
        overlay(argv[2], argv[3], 0);
        execv(argv[4], argv + 4);
        die(argv[4]);
    }
    if (argc < 5) {
        fprintf(stderr, "usage: floor BASE SCRATCH none|limits|all PROGRAM [ARG...]\n");
        return 64;
    }
    static const char *const none[] = {NULL};
    const char *const *groups = !strcmp(argv[3], "all") ? ALL : !strcmp(argv[3], "limits") ? LIMITED : none;
    overlay(argv[1], argv[2], FIRST_ID);
    int ready[2];
    if (pipe2(ready, O_CLOEXEC)) die("pipe");
    pid_t pid = (pid_t)syscall(SYS_clone, NAMESPACES | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) die("clone");
    if (pid == 0) {
        close(ready[1]);
        inside(ready[0], argv + 4);
    }
    char path[64], map[64];
    snprintf(map, sizeof map, "0 %u 65536\n", FIRST_ID);
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    put(path, map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    put(path, map);
    make_groups(groups, pid);
    if (write(ready[1], "x", 1) != 1) die("pipe");
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    remove_groups(groups);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
