// The connection of one session as a pure machine: an event in, a new state and effects out.

import { codeOfClose, type Exit, type Net, type ServerMessage, type TermCode } from "./message";

/** Longest pause between two attempts; attempts go on for ever. */
export const BACKOFF_MAX_MS = 30_000;
const BACKOFF_FIRST_MS = 500;
/** An answer that takes longer makes the connection stalled … */
export const STALL_MS = 2_000;
/** … and after this long the socket is given up for a new one. */
export const GIVE_UP_MS = 15_000;

/** What to open when there is nothing to resume. */
export type Target = { tile: string; net: Net };

/** Proof that a session is ours to come back to. */
export type Held = { session: string; token: string | null };

export type Phase =
  | { at: "idle" }
  /** No `ready` yet; `open` once the socket is. */
  | { at: "connecting"; since: number; open: boolean }
  | { at: "live" }
  | { at: "stalled"; since: number }
  | { at: "waiting"; retryAt: number; lostAt: number }
  /** The person said: stop trying. */
  | { at: "stopped"; lostAt: number }
  | { at: "takenOver"; when: number }
  | { at: "refused"; code: TermCode; message: string; when: number }
  | { at: "ended"; exit: Exit; when: number };

export type Connection = {
  phase: Phase;
  target: Target;
  held: Held | null;
  /** Whether this page types into the session, or only watches. */
  owner: boolean;
  /** Whether the screen shows the held session, so that a resume continues its text. */
  shown: boolean;
  /** Whether the screen shows any text, be it of a session before; it is never covered. */
  text: boolean;
  /** Attempts since the connection was last live. */
  attempt: number;
  /** When the connection was lost; kept over attempts. */
  lostAt: number | null;
};

export type ConnectionEvent =
  | { type: "open" }
  | { type: "attach"; held: Held }
  | { type: "opened" }
  | { type: "message"; message: ServerMessage }
  /** Anything came from the service. */
  | { type: "heard" }
  /** Since when an answer of the service is missing. */
  | { type: "silence"; since: number | null }
  | { type: "closed"; code: number; wasOpen: boolean }
  /** Answer to `probe`: an HTTP status, `null` where the service cannot be reached. */
  | { type: "probed"; status: number | null }
  /** The page is looked at again, or (`suspect`) the network or the machine came back, and an open socket may be dead. */
  | { type: "wake"; suspect: boolean }
  | { type: "tick" }
  | { type: "retry" }
  | { type: "stop" }
  | { type: "takeOver" }
  | { type: "fault"; why: string };

export type Effect =
  | { do: "connect"; takeover: boolean }
  | { do: "disconnect" }
  | { do: "hello" }
  /** Begin a session on the screen, or go on with it. */
  | { do: "begin"; fresh: boolean }
  | { do: "remember"; held: Held }
  | { do: "forget" }
  /** Ask over HTTP why the socket was refused. */
  | { do: "probe" }
  | { do: "wakeAt"; time: number };

export type Step = { state: Connection; effects: Effect[] };

/** The time, and a number from 0 to 1 that spreads attempts of many pages. */
export type Now = { now: number; spread: number };

export function idle(target: Target): Connection {
  return {
    phase: { at: "idle" },
    target,
    held: null,
    owner: true,
    shown: false,
    text: false,
    attempt: 0,
    lostAt: null,
  };
}

/** Pause before the attempt `attempt` (1 is the first), in milliseconds. */
export function backoff(attempt: number, spread: number): number {
  const full = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** Math.min(attempt - 1, 10));
  return Math.round(full * (0.8 + 0.2 * spread));
}

function stay(state: Connection): Step {
  return { state, effects: [] };
}

function connect(state: Connection, now: number, takeover: boolean): Step {
  return {
    state: { ...state, phase: { at: "connecting", since: now, open: false } },
    effects: [
      { do: "connect", takeover },
      { do: "wakeAt", time: now + GIVE_UP_MS },
    ],
  };
}

function reconnect(state: Connection, now: number, takeover: boolean): Step {
  const again = connect(state, now, takeover);
  again.effects.unshift({ do: "disconnect" });
  return again;
}

function wait(state: Connection, { now, spread }: Now): Step {
  const attempt = state.attempt + 1;
  const retryAt = now + backoff(attempt, spread);
  const lostAt = state.lostAt ?? now;
  return {
    state: { ...state, attempt, lostAt, phase: { at: "waiting", retryAt, lostAt } },
    effects: [{ do: "disconnect" }, { do: "wakeAt", time: retryAt }],
  };
}

function refuse(state: Connection, code: TermCode, message: string, now: number): Step {
  if (code === "TERM_TAKEN_OVER") {
    return {
      state: { ...state, owner: false, phase: { at: "takenOver", when: now } },
      effects: [{ do: "disconnect" }],
    };
  }
  const gone = code === "TERM_RESUME_GONE" || code === "TERM_NOT_FOUND";
  // A session of ours that is not found has ended; a tile that is not found is another matter.
  const ended = gone && state.held !== null;
  const phase = ended
    ? ({ at: "refused", code: "TERM_RESUME_GONE", message: "", when: now } as const)
    : ({ at: "refused", code, message, when: now } as const);
  return {
    state: { ...state, held: gone ? null : state.held, phase },
    effects: [{ do: "disconnect" }, ...(gone ? [{ do: "forget" } as const] : [])],
  };
}

function onMessage(state: Connection, message: ServerMessage, now: number): Step {
  switch (message.type) {
    case "ready": {
      const held = { session: message.session, token: message.resumeToken };
      const fresh = !state.shown || state.held?.session !== held.session;
      return {
        state: {
          ...state,
          held,
          owner: message.owner,
          shown: true,
          text: true,
          attempt: 0,
          lostAt: null,
          phase: { at: "live" },
        },
        effects: [
          { do: "remember", held },
          { do: "begin", fresh },
        ],
      };
    }
    case "exit": {
      const { code, signal, reason, by } = message;
      return {
        state: {
          ...state,
          held: null,
          phase: { at: "ended", exit: { code, signal, reason, by }, when: now },
        },
        effects: [{ do: "forget" }, { do: "disconnect" }],
      };
    }
    case "error":
      return message.fatal ? refuse(state, message.code, message.message, now) : stay(state);
    case "replayEnd":
    case "size":
    case "clients":
      return stay(state);
  }
}

function isUp(phase: Phase): boolean {
  return phase.at === "connecting" || phase.at === "live" || phase.at === "stalled";
}

function onClosed(state: Connection, code: number, wasOpen: boolean, now: Now): Step {
  // After an exit, an error or a farewell of our own the close says nothing new.
  if (!isUp(state.phase)) return stay(state);
  const known = codeOfClose(code);
  if (known !== null) return refuse(state, known, "", now.now);
  const waiting = wait(state, now);
  // A browser does not say why an upgrade failed; an ordinary request does.
  if (!wasOpen) waiting.effects.push({ do: "probe" });
  return waiting;
}

/** When the phase ends by itself. */
function deadline(phase: Phase): number | null {
  switch (phase.at) {
    case "waiting":
      return phase.retryAt;
    case "connecting":
      // The building of a sandbox takes as long as it takes.
      return phase.open ? null : phase.since + GIVE_UP_MS;
    case "stalled":
      return phase.since + GIVE_UP_MS;
    case "idle":
    case "live":
    case "stopped":
    case "takenOver":
    case "refused":
    case "ended":
      return null;
  }
}

function onTick(state: Connection, now: Now): Step {
  const time = deadline(state.phase);
  if (time === null) return stay(state);
  // Timers may be early.
  if (now.now < time) return { state, effects: [{ do: "wakeAt", time }] };
  return state.phase.at === "waiting" ? connect(state, now.now, false) : wait(state, now);
}

function onSilence(state: Connection, since: number | null, { now }: Now): Step {
  if (state.phase.at !== "live" || since === null || now - since < STALL_MS) return stay(state);
  return {
    state: { ...state, phase: { at: "stalled", since } },
    effects: [{ do: "wakeAt", time: since + GIVE_UP_MS }],
  };
}

function onWake(state: Connection, suspect: boolean, now: number): Step {
  const { at } = state.phase;
  if (at === "waiting") return connect(state, now, false);
  if (!suspect || !(at === "live" || at === "stalled")) return stay(state);
  // A resume loses nothing, so a doubtful socket is replaced rather than examined.
  return reconnect(state, now, false);
}

function onProbed(state: Connection, status: number | null, now: number): Step {
  if (state.phase.at !== "waiting") return stay(state);
  if (status === 401) return refuse(state, "TERM_UNAUTHENTICATED", "", now);
  if (status === 403) return refuse(state, "TERM_FORBIDDEN", "", now);
  return stay(state);
}

/** Starts over: what was held is left alone, its text stays on the screen. */
function open(state: Connection, now: number): Step {
  const begun = { ...state, held: null, owner: true, shown: false, attempt: 0, lostAt: null };
  const again = reconnect(begun, now, false);
  again.effects.unshift({ do: "forget" });
  return again;
}

/** One step of the machine. */
export function step(state: Connection, event: ConnectionEvent, now: Now): Step {
  switch (event.type) {
    case "open":
      return open(state, now.now);
    case "attach":
      return connect({ ...state, held: event.held, shown: false }, now.now, false);
    case "opened":
      if (state.phase.at !== "connecting") return stay(state);
      return {
        state: { ...state, phase: { ...state.phase, open: true } },
        effects: [{ do: "hello" }],
      };
    case "message":
      return onMessage(state, event.message, now.now);
    case "heard":
      return state.phase.at === "stalled" ? stay({ ...state, phase: { at: "live" } }) : stay(state);
    case "silence":
      return onSilence(state, event.since, now);
    case "closed":
      return onClosed(state, event.code, event.wasOpen, now);
    case "probed":
      return onProbed(state, event.status, now.now);
    case "wake":
      return onWake(state, event.suspect, now.now);
    case "tick":
      return onTick(state, now);
    case "retry":
      return reconnect(state, now.now, false);
    case "stop":
      return {
        state: { ...state, phase: { at: "stopped", lostAt: state.lostAt ?? now.now } },
        effects: [{ do: "disconnect" }],
      };
    case "takeOver":
      return reconnect(state, now.now, true);
    case "fault":
      return refuse(state, "TERM_INVALID_FRAME", event.why, now.now);
  }
}
