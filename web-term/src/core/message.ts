// Text messages of casemate.term.v1: the control plane.

import { type Fields, readJson } from "./fields";
import type { Parsed } from "./frame";

/** Sub-protocol of the socket. */
export const PROTOCOL = "casemate.term.v1";

/** Error codes of the terminal, each with the close code that goes with it. */
export const CLOSE_CODES = {
  TERM_UNAUTHENTICATED: 4401,
  TERM_FORBIDDEN: 4403,
  TERM_NOT_FOUND: 4404,
  TERM_RESUME_GONE: 4410,
  TERM_TAKEN_OVER: 4409,
  TERM_INVALID_FRAME: 4400,
  TERM_INVALID_SIZE: null,
  TERM_LIMIT: 4429,
  TERM_TOO_SLOW: 4408,
  TERM_UNAVAILABLE: 4503,
  TERM_INTERNAL: 4500,
} as const;

export type TermCode = keyof typeof CLOSE_CODES;
export const TERM_CODES = Object.keys(CLOSE_CODES) as [TermCode, ...TermCode[]];

/** Code that a socket's close code stands for; none where a proxy or the network closed it. */
export function codeOfClose(close: number): TermCode | null {
  return TERM_CODES.find((code) => CLOSE_CODES[code] === close) ?? null;
}

const NETS = ["internet", "host", "none"] as const;
export type Net = (typeof NETS)[number];

/** A field of the request that policy changed. */
export type Clamp = { field: string; asked: string; got: string; rule: string };

/** What policy decided for a session. */
export type SessionEnv = {
  tile: string;
  tier: "admin" | "restricted";
  nesting: boolean;
  base: string;
  baseOutdated: boolean;
  layer: "persistent" | "ephemeral";
  inheritedFrom: string | null;
  net: Net;
  api: boolean;
  gpu: string;
  clamped: Clamp[];
  gaps: string[];
};

const REASONS = [
  "exited",
  "signaled",
  "out_of_memory",
  "timed_out",
  "idle_timed_out",
  "limit",
  "cancelled",
  "lost",
] as const;
const ENDERS = ["user", "admin", "reset", "revoked", "shutdown"] as const;

/** How a session ended. */
export type Exit = {
  code: number | null;
  signal: number | null;
  reason: (typeof REASONS)[number];
  by: (typeof ENDERS)[number] | null;
};

export type Ready = {
  type: "ready";
  session: string;
  resumeToken: string;
  /** First byte that follows; beyond the one asked for where the ring no longer held it. */
  seq: number;
  iseq: number;
  window: number;
  replay: "none" | "tail";
  owner: boolean;
  env: SessionEnv;
};

/** A text message from the service. */
export type ServerMessage =
  | Ready
  | { type: "replayEnd" }
  | { type: "size"; cols: number; rows: number; by: string | null }
  | { type: "clients"; n: number; you: string; writer: string | null }
  | ({ type: "exit" } & Exit)
  | { type: "error"; code: TermCode; message: string; fatal: boolean };

/** A text message to the service. */
export type ClientMessage =
  | {
      type: "hello";
      v: 1;
      attach:
        | { session: string }
        | { open: { tile: string; net: Net; api: boolean; gpu: string; nesting?: boolean } };
      cols: number;
      rows: number;
      mode: "rw" | "ro";
      takeover: boolean;
      resume?: { token: string; seq: number; iseq: number };
    }
  | { type: "resize"; cols: number; rows: number }
  | { type: "signal"; name: "INT" | "TERM" | "HUP" | "KILL" }
  | { type: "close" }
  | { type: "replayDone" };

function optional<T>(fields: Fields, name: string, read: (name: string) => T): T | null {
  return fields.isNull(name) ? null : read(name);
}

function readEnv(env: Fields): SessionEnv {
  return {
    tile: env.text("tile"),
    tier: env.oneOf("tier", ["admin", "restricted"]),
    nesting: env.flag("nesting"),
    base: env.text("base"),
    baseOutdated: env.flag("baseOutdated"),
    layer: env.oneOf("layer", ["persistent", "ephemeral"]),
    inheritedFrom: optional(env, "inheritedFrom", (name) => env.text(name)),
    net: env.oneOf("net", NETS),
    api: env.flag("api"),
    gpu: env.text("gpu"),
    clamped: env.objects("clamped").map((clamp) => ({
      field: clamp.text("field"),
      asked: clamp.text("asked"),
      got: clamp.text("got"),
      rule: clamp.text("rule"),
    })),
    gaps: env.texts("gaps"),
  };
}

function readReady(message: Fields): Ready {
  return {
    type: "ready",
    session: message.text("session"),
    resumeToken: message.text("resumeToken"),
    seq: message.count("seq"),
    iseq: message.count("iseq"),
    window: message.count("window"),
    replay: message.oneOf("replay", ["none", "tail"]),
    owner: message.flag("owner"),
    env: readEnv(message.object("env")),
  };
}

const READERS: { [T in ServerMessage["type"]]: (message: Fields) => ServerMessage } = {
  ready: readReady,
  replayEnd: () => ({ type: "replayEnd" }),
  size: (message) => ({
    type: "size",
    cols: message.count("cols"),
    rows: message.count("rows"),
    by: optional(message, "by", (name) => message.text(name)),
  }),
  clients: (message) => ({
    type: "clients",
    n: message.count("n"),
    you: message.text("you"),
    writer: optional(message, "writer", (name) => message.text(name)),
  }),
  exit: (message) => ({
    type: "exit",
    code: optional(message, "code", (name) => message.count(name)),
    signal: optional(message, "signal", (name) => message.count(name)),
    reason: message.oneOf("reason", REASONS),
    by: optional(message, "by", (name) => message.oneOf(name, ENDERS)),
  }),
  error: (message) => ({
    type: "error",
    code: message.oneOf("code", TERM_CODES),
    message: message.text("message"),
    fatal: message.flag("fatal"),
  }),
};

const TYPES = Object.keys(READERS) as ServerMessage["type"][];

/** Parses a text message. */
export function parseMessage(text: string): Parsed<ServerMessage> {
  return readJson(text, (message) => READERS[message.oneOf("type", TYPES)](message));
}

/** Encodes a text message. */
export function encodeMessage(message: ClientMessage): string {
  return JSON.stringify(message);
}
