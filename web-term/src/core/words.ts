// What the page says about states of a session: outcome first, then what it means.

import type { Connection } from "./connection";
import type { Exit, Net, SessionEnv, TermCode } from "./message";

/** How grave something is: the colour of its edge. */
export type Tone = "ok" | "warn" | "err" | "acc";

export type Words = { tone: Tone; title: string; detail: string };

/** `95000` → `1 min 35 s`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return seconds % 60 === 0 ? `${minutes} min` : `${minutes} min ${seconds % 60} s`;
  }
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** `14:32:07`, in the zone of the browser. */
export function clock(time: number): string {
  const date = new Date(time);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** `1 byte`, `12 bytes`, `3.4 KiB`. */
export function size(bytes: number): string {
  if (bytes < 1024) return bytes === 1 ? "1 byte" : `${bytes} bytes`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

/** Safe to show as a title: no control characters, no more than 256 of the rest. */
export function cleanTitle(title: string): string {
  return [...title]
    .filter((char) => !/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(char))
    .slice(0, 256)
    .join("")
    .trim();
}

function cancelled(by: Exit["by"]): string {
  switch (by) {
    case "admin":
      return "Ended by an administrator";
    case "reset":
      return "Ended: the system layer was reset";
    case "revoked":
      return "Ended: the access to this tile was taken away";
    case "shutdown":
      return "Ended: the service was told to end everything";
    case "user":
    case null:
      return "Ended by you";
  }
}

// signal(7) on x86-64 and arm64.
const SIGNALS: { [number: number]: string } = {
  1: "HUP",
  2: "INT",
  3: "QUIT",
  4: "ILL",
  6: "ABRT",
  7: "BUS",
  8: "FPE",
  9: "KILL",
  11: "SEGV",
  13: "PIPE",
  14: "ALRM",
  15: "TERM",
  31: "SYS",
};

function signalName(signal: number | null): string {
  return signal === null ? "unknown" : (SIGNALS[signal] ?? String(signal));
}

/** How a session ended. */
export function exitWords(exit: Exit): Words {
  const kept = "Files in the tile and in your home are kept.";
  switch (exit.reason) {
    case "exited":
      return {
        tone: exit.code === 0 ? "ok" : "warn",
        title: `Exited with code ${exit.code ?? "unknown"}`,
        detail: "The shell closed itself. Its last screen is above.",
      };
    case "signaled":
      return {
        tone: "warn",
        title: `Stopped by signal ${signalName(exit.signal)}`,
        detail: "The shell was stopped from inside its sandbox.",
      };
    case "out_of_memory":
      return { tone: "err", title: "Out of memory: killed at its limit", detail: kept };
    case "timed_out":
      return { tone: "warn", title: "Timed out", detail: kept };
    case "idle_timed_out":
      return { tone: "warn", title: "Ended after a long time without a viewer", detail: kept };
    case "limit":
      return { tone: "err", title: "Ended at a limit of its sandbox", detail: kept };
    case "cancelled":
      return { tone: "acc", title: cancelled(exit.by), detail: kept };
    case "lost":
      return {
        tone: "err",
        title: "The service lost this session; its last screen is kept",
        detail: kept,
      };
  }
}

/** What the button of a refusal does. */
export type Remedy = "signIn" | "openAgain" | "reconnect" | "openNone" | "none";

export type RefusalWords = Words & { remedy: Remedy; action: string };

/** Why there is no connection. `said` is the service's own sentence, empty where it said none. */
export function refusalWords(
  code: TermCode,
  said: string,
  target: Connection["target"],
): RefusalWords {
  switch (code) {
    case "TERM_UNAUTHENTICATED":
      return {
        tone: "warn",
        title: "You were signed out",
        detail: "Sign in to come back to this shell; it is still running.",
        remedy: "signIn",
        action: "Sign in",
      };
    case "TERM_FORBIDDEN":
      return {
        tone: "err",
        title: "You may not open this terminal",
        detail:
          (said && sentence(said)) ||
          `Opening a terminal on ${target.tile} needs level terminal. An administrator can grant it.`,
        remedy: "none",
        action: "",
      };
    case "TERM_NOT_FOUND":
      return {
        tone: "err",
        title: "There is no such session or tile, or you can’t see it",
        detail: said,
        remedy: "openAgain",
        action: "Open a new shell",
      };
    case "TERM_RESUME_GONE":
      return {
        tone: "err",
        title: "This shell ended while you were away",
        detail: said || "Its last screen is above.",
        remedy: "openAgain",
        action: "Open again",
      };
    case "TERM_TAKEN_OVER":
      return {
        tone: "acc",
        title: "This session is being typed in elsewhere",
        detail: "The screen above is from that moment.",
        remedy: "reconnect",
        action: "Take it back",
      };
    case "TERM_LIMIT":
      return {
        tone: "warn",
        title: "No more sessions can be opened",
        detail: said || "Close one to open another.",
        remedy: "reconnect",
        action: "Try again",
      };
    case "TERM_TOO_SLOW":
      return {
        tone: "warn",
        title: "This browser fell too far behind, so the connection was closed",
        detail: "The shell is still running.",
        remedy: "reconnect",
        action: "Catch up",
      };
    case "TERM_UNAVAILABLE":
      return {
        tone: "err",
        title: "This host can’t build the sandbox, so no shell was started",
        detail: `${prefix(said)}There is no fallback to a weaker sandbox or to a host shell.`,
        remedy: target.net === "none" ? "reconnect" : "openNone",
        action: target.net === "none" ? "Try again" : "Open with network none",
      };
    case "TERM_INVALID_SIZE":
      return {
        tone: "warn",
        title: "The window is too small for a terminal",
        detail: "It needs at least 1 × 1.",
        remedy: "reconnect",
        action: "Reconnect",
      };
    case "TERM_INVALID_FRAME":
    case "TERM_INTERNAL":
      return {
        tone: "err",
        title: "Something went wrong on our side",
        detail: `${prefix(said)}The shell is still running.`,
        remedy: "reconnect",
        action: "Reconnect",
      };
  }
}

function prefix(said: string): string {
  return said === "" ? "" : `${sentence(said)} `;
}

function sentence(said: string): string {
  const text = said.charAt(0).toUpperCase() + said.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** One line of the status bar, and of what is read aloud. */
export function statusWords(
  connection: Connection,
  now: number,
): { tone: Tone | null; text: string } {
  const { phase } = connection;
  switch (phase.at) {
    case "idle":
      return { tone: null, text: "No session" };
    case "connecting":
      return { tone: null, text: connection.lostAt === null ? "Opening" : "Reconnecting" };
    case "live":
      return connection.owner
        ? { tone: "ok", text: "Connected" }
        : { tone: "acc", text: "Connected, read-only" };
    case "stalled":
      return { tone: "warn", text: `No answer for ${duration(now - phase.since)}` };
    case "waiting":
      return { tone: "warn", text: `Reconnecting in ${duration(phase.retryAt - now)}` };
    case "stopped":
      return { tone: "warn", text: "Not connected" };
    case "takenOver":
      return { tone: "acc", text: "In another window" };
    case "refused":
      return { tone: "err", text: "Refused" };
    case "ended":
      return { tone: null, text: "Ended" };
  }
}

/** What a change of state says aloud; nothing for what repeats. */
export function spokenWords(connection: Connection): string {
  const { phase, target } = connection;
  switch (phase.at) {
    case "idle":
      return "";
    case "connecting":
      return connection.lostAt === null ? `Opening a shell on ${target.tile}` : "";
    case "live":
      return connection.owner ? "Connected" : "Connected, read-only";
    case "stalled":
      return "No answer from the service. Your keys are kept.";
    case "waiting":
      return connection.attempt === 1 ? "Connection lost. Reconnecting." : "";
    case "stopped":
      return "Not connected";
    case "takenOver":
      return "This session is being typed in elsewhere";
    case "refused":
      return refusalWords(phase.code, phase.message, target).title;
    case "ended":
      return exitWords(phase.exit).title;
  }
}

/** What a network scope means. */
export const NET_WORDS: { [N in Net]: string } = {
  internet: "Public addresses and this service only. LAN, host and cloud metadata are filtered.",
  none: "No network at all, not even DNS. The tile API is unreachable.",
  host: "Shares the host’s network. Administrators only.",
};

/** `debian12@sha256:91d0…4b7e` → `debian12`. */
export function baseName(base: string): string {
  return base.split("@", 1)[0] ?? base;
}

const GAP_WORDS: { [gap: string]: string } = {
  landlock: "no Landlock, so there is no read guard",
  limits: "no cgroup controller, so memory, tasks and processor are not limited",
};

/** The one notice above the screen, the gravest first; `null` where all is as asked for. */
export function noticeWords(
  env: SessionEnv,
): { icon: "shield" | "net" | "layer"; title: string; detail: string } | null {
  if (env.gaps.length > 0) {
    const list = env.gaps.map((gap) => GAP_WORDS[gap] ?? gap).join("; ");
    const count =
      env.gaps.length === 1
        ? "One protection is missing"
        : `${env.gaps.length} protections are missing`;
    return { icon: "shield", title: `${count} on this host:`, detail: `${list}.` };
  }
  const clamp = env.clamped[0];
  if (clamp) {
    return {
      icon: "net",
      title: `Opened with ${clamp.field} ${clamp.got}.`,
      detail: `You asked for ${clamp.asked}; ${sentence(clamp.rule)}`,
    };
  }
  if (env.inheritedFrom !== null) {
    return {
      icon: "layer",
      title: `This layer was last used by ${env.inheritedFrom}.`,
      detail: "System files such as /etc/profile.d may contain their changes.",
    };
  }
  if (env.layer === "ephemeral") {
    return {
      icon: "layer",
      title: "System changes here are temporary.",
      detail:
        "Packages you install vanish when this session ends. Files in the tile and in your home are kept.",
    };
  }
  return null;
}
