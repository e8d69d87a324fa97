//! A real registry: push, pull, credentials, TLS, and connections that break.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::Ordering;

use crate::proxy::Proxy;
use crate::server::{Server, Setup};
use crate::world::{World, failed};

#[test]
fn a_base_built_on_one_machine_is_imported_on_another() {
    let world = World::with_base();
    let server = Server::start(&world, Setup::Open);
    let was = world.ours("root", &["show", "d"]);
    let to = format!("docker://{}/team/d:1", server.host);
    let pushed = world.ours("root", &["push", "d", &to]);
    assert_eq!(pushed["digest"], was["manifest"]);
    let became = world.ours("other", &["import", "--name", "debian12", &to]);
    assert_eq!(became["manifest"], was["manifest"]);
    assert_eq!(became["chain"], was["chain"]);
    assert_eq!(
        fs::read(world.fs("other", "debian12").join("bin/big")).unwrap(),
        fs::read(world.path("tree/usr/bin/big")).unwrap()
    );
    assert_eq!(world.bases("other")[0]["pinned"], true);

    // What is there is not fetched again.
    let proxy = Proxy::start(&server.host, u64::MAX);
    let again = format!("docker://{}/team/d:1", proxy.host);
    let known = world.ours("other", &["import", "--name", "again", &again]);
    assert_eq!(known["manifest"], was["manifest"]);
    assert!(proxy.bytes.load(Ordering::Relaxed) < 16 * 1024);

    // Pinned to a digest it is the same, whatever the tag becomes.
    let digest = was["manifest"].as_str().unwrap();
    let exactly = format!("docker://{}/team/d:1@{digest}", server.host);
    fs::write(world.path("tree/etc/release"), "two\n").unwrap();
    world.ours("root", &["import", "--name", "e", "tree"]);
    let moved = world.ours("root", &["export", "e", &to]);
    assert_ne!(moved["digest"], was["manifest"]);
    let pinned = world.ours("third", &["import", "--name", "d", &exactly]);
    assert_eq!(pinned["manifest"], was["manifest"]);
    // And nothing else is pushed there.
    world.fails("root", &["push", "e", &exactly], 64, "cannot be pushed as");

    world.fails(
        "other",
        &[
            "import",
            "--name",
            "x",
            &format!("docker://{}/team/d:none", server.host),
        ],
        66,
        "has no such image",
    );
    world.fails(
        "other",
        &[
            "import",
            "--name",
            "x",
            &format!("docker://{}/none", server.host),
        ],
        66,
        "has no such image",
    );
    assert_eq!(world.bases("other").len(), 2);
}

#[test]
fn credentials_come_from_files_or_are_typed_and_reach_no_message() {
    let world = World::with_base();
    let server = Server::start(&world, Setup::Password);
    let place = format!("docker://{}/team/d:1", server.host);
    let none = world.fails("root", &["push", "d", &place], 77, "asks for credentials");
    let wrong = world.fails(
        "root",
        &["push", "--creds", "user:wrong-secret", "d", &place],
        77,
        "does not accept the credentials",
    );
    for text in [none, wrong] {
        assert!(!text.contains("secret"), "{text}");
    }
    let pushed = world.ours("root", &["push", "--creds", "user:pass:word", "d", &place]);

    // Typed, so that no command line has it.
    let mut command = world.command("a", &["import", "--name", "d", "--creds", "user", &place]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"pass:word\n")
        .unwrap();
    assert!(child.wait().unwrap().success());

    // As another tool left them.
    let login = [
        "login",
        "--tls-verify=false",
        "-u",
        "user",
        "-p",
        "pass:word",
        "--authfile",
        "auth.json",
        &server.host,
    ];
    world.tool("skopeo", &login);
    let import = |root: &str, more: &[&str]| {
        let mut arguments = vec!["import", "--name", "d", place.as_str()];
        arguments.extend(more);
        world.command(root, &arguments)
    };
    let succeeds = |mut command: std::process::Command| {
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
    };
    succeeds(import("b", &["--authfile", "auth.json"]));
    let mut named = import("c", &[]);
    named.env("REGISTRY_AUTH_FILE", world.path("auth.json"));
    succeeds(named);
    let usual = world.path("runtime/containers");
    fs::create_dir_all(&usual).unwrap();
    fs::copy(world.path("auth.json"), usual.join("auth.json")).unwrap();
    succeeds(import("d", &[]));
    let docker = world.path("docker");
    fs::remove_dir_all(usual).unwrap();
    fs::create_dir_all(&docker).unwrap();
    fs::copy(world.path("auth.json"), docker.join("config.json")).unwrap();
    let mut dockers = import("e", &[]);
    dockers.env("DOCKER_CONFIG", &docker);
    succeeds(dockers);
    for root in ["a", "b", "c", "d", "e"] {
        assert_eq!(world.bases(root)[0]["manifest"], pushed["digest"]);
    }

    world.fails(
        "f",
        &["import", "--name", "d", "--authfile", "absent.json", &place],
        66,
        "there is no file of credentials",
    );
    fs::write(world.path("bad.json"), r#"{"auths": "secret"}"#).unwrap();
    let bad = world.fails(
        "f",
        &["import", "--name", "d", "--authfile", "bad.json", &place],
        64,
        "is no file of credentials (line 1",
    );
    assert!(!bad.contains("secret"), "{bad}");
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    const CUT: u64 = 512 * 1024;
    let world = World::with_base();
    let server = Server::start(&world, Setup::Open);
    let to = format!("docker://{}/d:1", server.host);
    let pushed = world.ours("root", &["push", "d", &to]);
    let proxy = Proxy::start(&server.host, CUT);
    let from = format!("docker://{}/d:1", proxy.host);
    let became = world.ours("other", &["import", "--name", "d", &from]);
    assert_eq!(became["manifest"], pushed["digest"]);
    let (bytes, connections) = (
        proxy.bytes.load(Ordering::Relaxed),
        proxy.connections.load(Ordering::Relaxed),
    );
    // 2 MiB in pieces of half a MiB: each connection went on, none began anew.
    assert!(connections >= 5, "{connections}");
    assert!(bytes < (2 << 20) + CUT, "{bytes}");
}

#[test]
fn a_download_that_never_gets_on_is_given_up() {
    let world = World::with_base();
    let server = Server::start(&world, Setup::Open);
    world.ours(
        "root",
        &["push", "d", &format!("docker://{}/d:1", server.host)],
    );
    // Enough for the documents, not for progress with the layer.
    let proxy = Proxy::start(&server.host, 4096);
    let from = format!("docker://{}/d:1", proxy.host);
    world.fails(
        "other",
        &["import", "--name", "d", &from],
        69,
        "broke 6 times",
    );
    assert_eq!(world.bases("other").len(), 0);
    // What is given up can be had later.
    let direct = format!("docker://{}/d:1", server.host);
    world.ours("other", &["import", "--name", "d", &direct]);
}

#[test]
fn tls_is_checked_and_plain_http_stays_on_this_machine() {
    let world = World::with_base();
    let server = Server::start(&world, Setup::Tls);
    let place = format!("docker://{}/d:1", server.host);
    let arguments = ["push", "d", place.as_str()];
    world.fails("root", &arguments, 69, "is not trusted");
    world.fails(
        "root",
        &["push", "--insecure", "d", &place],
        69,
        "is not trusted",
    );
    let mut trusting = world.command("root", &arguments);
    let output = trusting
        .env("SSL_CERT_FILE", world.path("ca.pem"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let mut importing = world.command("other", &["import", "--name", "d", &place]);
    let output = importing
        .env("SSL_CERT_FILE", world.path("ca.pem"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    // Another name than the certificate has.
    let named = place.replace("127.0.0.1", "localhost");
    let mut other = world.command("third", &["import", "--name", "d", &named]);
    other.env("SSL_CERT_FILE", world.path("ca.pem"));
    failed(&other.output().unwrap(), 69, "is not trusted");
}

#[test]
fn plain_http_leaves_this_machine_only_where_it_is_allowed() {
    let world = World::with_base();
    let config = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
         http: {{addr: '192.0.2.1:5000', secret: x}}\n",
        world.text("registry")
    );
    fs::write(world.path("registry.yml"), config).unwrap();
    // A network of its own, in which the address is no loopback address, but leads nowhere else.
    let script = r#"
        set -e
        ip link set lo up
        ip address add 192.0.2.1/32 dev lo
        docker-registry serve registry.yml >/dev/null 2>&1 &
        server=$!
        trap 'kill $server' EXIT
        for try in 1 2 3 4 5 6 7 8 9 10; do
            curl -s -o /dev/null http://192.0.2.1:5000/v2/ && break
            sleep 0.3
        done
        "$1" push d docker://192.0.2.1:5000/d:1 2>refused && exit 1
        [ $? = 69 ]
        "$1" push --insecure d docker://192.0.2.1:5000/d:1
    "#;
    let output = std::process::Command::new("unshare")
        .args(["--net", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_rootfs-tools"))
        .env("CASEMATE_ROOT", world.path("root"))
        .env_remove("http_proxy")
        .env_remove("https_proxy")
        .env_remove("all_proxy")
        .env_remove("HTTP_PROXY")
        .env_remove("HTTPS_PROXY")
        .env_remove("ALL_PROXY")
        .current_dir(world.path(""))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let refused = fs::read_to_string(world.path("refused")).unwrap();
    assert!(refused.contains("only --insecure allows that"), "{refused}");
}

#[test]
fn a_registry_that_is_not_there_is_said_at_once() {
    let world = World::with_base();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = closed.local_addr().unwrap();
    drop(closed);
    let start = std::time::Instant::now();
    world.fails(
        "root",
        &["push", "d", &format!("docker://{host}/d")],
        69,
        "no usable answer",
    );
    assert!(start.elapsed().as_secs() < 5);
}
