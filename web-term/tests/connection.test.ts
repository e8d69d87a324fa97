import { describe, expect, test } from "vitest";
import {
  BACKOFF_MAX_MS,
  backoff,
  type Connection,
  type ConnectionEvent,
  type Effect,
  GIVE_UP_MS,
  idle,
  STALL_MS,
  step,
} from "../src/core/connection";
import type { Ready, ServerMessage } from "../src/core/message";

const ready: Ready = {
  type: "ready",
  session: "ses_1",
  resumeToken: "t1",
  seq: 0,
  iseq: 0,
  window: 1 << 20,
  replay: "none",
  owner: true,
  env: {
    tile: "apps/a",
    tier: "admin",
    nesting: true,
    base: "debian12@sha256:0",
    baseOutdated: false,
    layer: "ephemeral",
    inheritedFrom: null,
    net: "none",
    api: false,
    gpu: "none",
    clamped: [],
    gaps: [],
  },
};

/** A machine with a clock and a record of what it wanted done. */
class Bench {
  state: Connection = idle({ tile: "apps/a", net: "none" });
  now = 1_000_000;
  effects: Effect[] = [];

  go(event: ConnectionEvent): this {
    const next = step(this.state, event, { now: this.now, spread: 1 });
    this.state = next.state;
    this.effects = next.effects;
    return this;
  }

  say(message: ServerMessage): this {
    return this.go({ type: "message", message });
  }

  live(): this {
    return this.go({ type: "open" }).go({ type: "opened" }).say(ready);
  }

  get at(): string {
    return this.state.phase.at;
  }

  get did(): string[] {
    return this.effects.map((effect) => effect.do);
  }
}

const lost: ConnectionEvent = { type: "closed", code: 1006, wasOpen: true };

describe("opening", () => {
  test("connects, says hello when the socket is open, is live when ready", () => {
    const bench = new Bench().go({ type: "open" });
    expect(bench.at).toBe("connecting");
    expect(bench.did).toContain("connect");
    expect(bench.go({ type: "opened" }).did).toEqual(["hello"]);
    bench.say(ready);
    expect(bench.at).toBe("live");
    expect(bench.effects).toEqual([
      { do: "remember", held: { session: "ses_1", token: "t1" } },
      { do: "begin", fresh: true },
    ]);
  });

  test("asks over HTTP why an upgrade failed, and believes a 401", () => {
    const bench = new Bench().go({ type: "open" });
    bench.go({ type: "closed", code: 1006, wasOpen: false });
    expect(bench.at).toBe("waiting");
    expect(bench.did).toContain("probe");
    bench.go({ type: "probed", status: 401 });
    expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_UNAUTHENTICATED" });
  });

  test("goes on waiting when the service answers nothing or well", () => {
    const bench = new Bench().go({ type: "open" });
    bench.go({ type: "closed", code: 1006, wasOpen: false });
    expect(bench.go({ type: "probed", status: null }).at).toBe("waiting");
    expect(bench.go({ type: "probed", status: 200 }).at).toBe("waiting");
  });

  test("gives an upgrade up that takes too long, but not the building of a sandbox", () => {
    const bench = new Bench().go({ type: "open" });
    bench.now += GIVE_UP_MS;
    expect(bench.go({ type: "tick" }).at).toBe("waiting");
    const slow = new Bench().go({ type: "open" }).go({ type: "opened" });
    slow.now += 10 * GIVE_UP_MS;
    expect(slow.go({ type: "tick" }).at).toBe("connecting");
  });
});

describe("a lost socket", () => {
  test("is tried again for ever, at most half a minute apart", () => {
    const bench = new Bench().live();
    const lostAt = bench.now;
    let longest = 0;
    for (let attempt = 1; attempt <= 100; attempt += 1) {
      bench.go(lost);
      const { phase } = bench.state;
      if (phase.at !== "waiting") throw new Error(`attempt ${attempt} is ${phase.at}`);
      expect(bench.state.attempt).toBe(attempt);
      expect(phase.lostAt).toBe(lostAt);
      expect(bench.effects).toContainEqual({ do: "wakeAt", time: phase.retryAt });
      longest = Math.max(longest, phase.retryAt - bench.now);
      bench.now = phase.retryAt - 1;
      expect(bench.go({ type: "tick" }).at).toBe("waiting");
      expect(bench.effects).toEqual([{ do: "wakeAt", time: phase.retryAt }]);
      bench.now = phase.retryAt;
      expect(bench.go({ type: "tick" }).at).toBe("connecting");
      expect(bench.effects[0]).toEqual({ do: "connect", takeover: false });
    }
    expect(longest).toBe(BACKOFF_MAX_MS);
  });

  test("resumes: the same session continues its text, and the count of attempts ends", () => {
    const bench = new Bench().live().go(lost).go({ type: "wake", suspect: false });
    expect(bench.at).toBe("connecting");
    bench.go({ type: "opened" }).say(ready);
    expect(bench.at).toBe("live");
    expect(bench.effects).toContainEqual({ do: "begin", fresh: false });
    expect(bench.state).toMatchObject({ attempt: 0, lostAt: null });
  });

  test("waits longer each time, never below four fifths", () => {
    expect([1, 2, 3, 4].map((attempt) => backoff(attempt, 1))).toEqual([500, 1000, 2000, 4000]);
    expect(backoff(1, 0)).toBe(400);
    expect(backoff(1000, 0)).toBe(24_000);
  });

  test("is let go when the person says stop, and taken up when they say so", () => {
    const bench = new Bench().live().go(lost).go({ type: "stop" });
    expect(bench.at).toBe("stopped");
    expect(bench.go({ type: "tick" }).at).toBe("stopped");
    expect(bench.go({ type: "wake", suspect: true }).at).toBe("stopped");
    expect(bench.go({ type: "retry" }).at).toBe("connecting");
  });
});

describe("waking", () => {
  test("replaces an open socket only when it is in doubt", () => {
    const bench = new Bench().live();
    expect(bench.go({ type: "wake", suspect: false }).at).toBe("live");
    expect(bench.go({ type: "wake", suspect: true }).at).toBe("connecting");
    expect(bench.did.slice(0, 2)).toEqual(["disconnect", "connect"]);
  });
});

describe("silence", () => {
  test("stalls after two seconds, ends with any word of the service", () => {
    const bench = new Bench().live();
    const since = bench.now;
    bench.now += STALL_MS - 1;
    expect(bench.go({ type: "silence", since }).at).toBe("live");
    bench.now += 1;
    expect(bench.go({ type: "silence", since }).state.phase).toEqual({ at: "stalled", since });
    expect(bench.go({ type: "heard" }).at).toBe("live");
  });

  test("that lasts gives the socket up", () => {
    const bench = new Bench().live();
    const since = bench.now;
    bench.now += STALL_MS;
    bench.go({ type: "silence", since });
    bench.now = since + GIVE_UP_MS;
    expect(bench.go({ type: "tick" }).at).toBe("waiting");
    expect(bench.did).toContain("disconnect");
  });
});

describe("the end", () => {
  test("is final, whatever the socket does after it", () => {
    const bench = new Bench().live();
    bench.say({ type: "exit", code: 7, signal: null, reason: "exited", by: null });
    expect(bench.state.phase).toMatchObject({ at: "ended", exit: { code: 7 } });
    expect(bench.did).toEqual(["forget", "disconnect"]);
    for (const event of [lost, { type: "tick" }, { type: "wake", suspect: true }] as const) {
      expect(bench.go(event).at).toBe("ended");
      expect(bench.effects).toEqual([]);
    }
  });

  test("a restart holds nothing of before and begins afresh", () => {
    const bench = new Bench().live();
    bench.say({ type: "exit", code: 0, signal: null, reason: "exited", by: null });
    bench.go({ type: "open" });
    expect(bench.state).toMatchObject({ held: null, shown: false, text: true });
    bench.go({ type: "opened" }).say({ ...ready, session: "ses_2" });
    expect(bench.effects).toContainEqual({ do: "begin", fresh: true });
  });
});

describe("refusals", () => {
  test("a fatal error stays, an other one changes nothing", () => {
    const bench = new Bench().live();
    bench.say({ type: "error", code: "TERM_INVALID_SIZE", message: "x", fatal: false });
    expect(bench.at).toBe("live");
    bench.say({ type: "error", code: "TERM_TOO_SLOW", message: "x", fatal: true });
    expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_TOO_SLOW" });
    expect(bench.state.held).not.toBe(null);
    expect(bench.go({ type: "tick" }).at).toBe("refused");
  });

  test("a close code speaks where no message did", () => {
    const bench = new Bench().live().go({ type: "closed", code: 4503, wasOpen: true });
    expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_UNAVAILABLE" });
  });

  test("a session that is gone is forgotten", () => {
    for (const code of ["TERM_RESUME_GONE", "TERM_NOT_FOUND"] as const) {
      const bench = new Bench().live().go(lost).go({ type: "retry" }).go({ type: "opened" });
      bench.say({ type: "error", code, message: "", fatal: true });
      expect(bench.state.held).toBe(null);
      expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_RESUME_GONE" });
      expect(bench.did).toEqual(["disconnect", "forget"]);
    }
  });

  test("a tile that is not found is not a shell that ended", () => {
    const bench = new Bench().go({ type: "open" }).go({ type: "opened" });
    bench.say({ type: "error", code: "TERM_NOT_FOUND", message: "x", fatal: true });
    expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_NOT_FOUND" });
  });

  test("taken over: nothing is tried until the person takes it back", () => {
    const bench = new Bench().live();
    bench.say({ type: "error", code: "TERM_TAKEN_OVER", message: "", fatal: true });
    expect(bench.at).toBe("takenOver");
    expect(bench.go({ type: "wake", suspect: true }).at).toBe("takenOver");
    bench.go({ type: "takeOver" });
    expect(bench.effects).toContainEqual({ do: "connect", takeover: true });
    expect(bench.state.held?.session).toBe("ses_1");
  });

  test("what breaks the protocol is refused, not ignored", () => {
    const bench = new Bench().live().go({ type: "fault", why: "x" });
    expect(bench.state.phase).toMatchObject({ at: "refused", code: "TERM_INVALID_FRAME" });
    expect(bench.did).toContain("disconnect");
  });
});
