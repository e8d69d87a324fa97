import { describe, expect, test } from "vitest";
import {
  ACK_BYTES,
  ACK_DELAY_MS,
  INPUT_FLIGHT_MAX,
  INPUT_KEPT_MAX,
  InputFlow,
  OutputFlow,
} from "../src/core/flow";
import { INPUT_BYTES_MAX } from "../src/core/frame";

const bytes = (text: string) => new TextEncoder().encode(text);
const text = (some: Uint8Array) => new TextDecoder().decode(some);

describe("output", () => {
  test("acknowledges at once when enough is parsed", () => {
    const flow = new OutputFlow();
    expect(flow.parsed(ACK_BYTES - 1, 0)).toBe(null);
    expect(flow.parsed(ACK_BYTES, 1)).toBe(ACK_BYTES);
    expect(flow.owes).toBe(false);
  });

  test("acknowledges a little after a while", () => {
    const flow = new OutputFlow();
    expect(flow.parsed(10, 100)).toBe(null);
    expect(flow.owes).toBe(true);
    expect(flow.due(100 + ACK_DELAY_MS - 1)).toBe(null);
    expect(flow.due(100 + ACK_DELAY_MS)).toBe(10);
    expect(flow.due(1000)).toBe(null);
  });

  test("cuts what came before and refuses a hole", () => {
    const flow = new OutputFlow();
    expect(text(flow.take(0, bytes("abc")) ?? bytes("?"))).toBe("abc");
    expect(text(flow.take(1, bytes("bcde")) ?? bytes("?"))).toBe("de");
    expect(flow.take(0, bytes("abc"))?.length).toBe(0);
    expect(flow.received).toBe(5);
    expect(flow.take(6, bytes("g"))).toBe(null);
    expect(flow.received).toBe(5);
  });

  test("a late callback of before a restart is not acknowledged", () => {
    const flow = new OutputFlow();
    flow.take(0, bytes("abc"));
    flow.restart(100);
    expect(flow.parsed(3, 0)).toBe(null);
    expect(flow.owes).toBe(false);
  });
});

/** The other end: what arrived of the input. */
class Shell {
  got = "";
  take(pieces: { iseq: number; bytes: Uint8Array }[]): void {
    for (const piece of pieces) {
      expect(piece.bytes.length).toBeLessThanOrEqual(INPUT_BYTES_MAX);
      expect(piece.iseq).toBe(this.got.length);
      this.got += text(piece.bytes);
    }
  }
}

describe("input", () => {
  test("is sent once and forgotten when acknowledged", () => {
    const flow = new InputFlow();
    const shell = new Shell();
    flow.push(bytes("ls"));
    shell.take(flow.next(5));
    expect(flow.next(6)).toEqual([]);
    expect(flow.waitingSince).toBe(5);
    expect(flow.pending).toBe(2);
    expect(flow.ack(2, 7)).toBe(true);
    expect(flow.pending).toBe(0);
    expect(flow.waitingSince).toBe(null);
    expect(shell.got).toBe("ls");
  });

  test("an acknowledgement of what was never sent is a fault", () => {
    const flow = new InputFlow();
    flow.push(bytes("ls"));
    expect(flow.ack(1, 0)).toBe(false);
  });

  test("goes in frames of the largest size and no further than the flight allows", () => {
    const flow = new InputFlow();
    const shell = new Shell();
    flow.push(new Uint8Array(INPUT_FLIGHT_MAX + 10).fill(0x61));
    shell.take(flow.next(0));
    expect(shell.got.length).toBe(INPUT_FLIGHT_MAX);
    flow.ack(INPUT_BYTES_MAX, 1);
    shell.take(flow.next(1));
    expect(shell.got.length).toBe(INPUT_FLIGHT_MAX + 10);
  });

  test("more than the bound is refused as a whole", () => {
    const flow = new InputFlow();
    expect(flow.push(new Uint8Array(INPUT_KEPT_MAX))).toBe(true);
    expect(flow.push(bytes("x"))).toBe(false);
    expect(flow.pending).toBe(INPUT_KEPT_MAX);
  });

  test("a copy is kept, not the caller's buffer", () => {
    const flow = new InputFlow();
    const mine = bytes("ls");
    flow.push(mine);
    mine.fill(0);
    expect(text(flow.next(0)[0]?.bytes ?? mine)).toBe("ls");
  });

  test("a count from elsewhere keeps what waits and puts it after", () => {
    const flow = new InputFlow();
    flow.push(bytes("typed before ready"));
    flow.adopt(552);
    const [piece] = flow.next(0);
    expect(piece?.iseq).toBe(552);
    expect(text(piece?.bytes ?? bytes(""))).toBe("typed before ready");
    expect(flow.resume(551)).toBe(false);
    expect(flow.resume(571)).toBe(false);
  });

  test("drops at any point lose and double nothing", () => {
    let seed = 7;
    const next = (below: number) => {
      seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
      return (seed >>> 8) % below;
    };
    for (let round = 0; round < 300; round += 1) {
      const flow = new InputFlow();
      let typed = "";
      let got = "";
      for (let turn = 0; turn < 40; turn += 1) {
        const word = String.fromCharCode(97 + next(26)).repeat(1 + next(5));
        typed += word;
        flow.push(bytes(word));
        const sent = flow.next(turn);
        // The socket drops after some of the frames, perhaps in the middle of one.
        const arrives = next(sent.length + 1);
        for (const piece of sent.slice(0, arrives)) {
          expect(piece.iseq).toBeLessThanOrEqual(got.length);
          got = got.slice(0, piece.iseq) + text(piece.bytes);
        }
        if (arrives < sent.length || next(4) === 0) expect(flow.resume(got.length)).toBe(true);
        else if (next(2) === 0) flow.ack(got.length, turn);
      }
      for (const piece of flow.next(99)) got += text(piece.bytes);
      expect(got).toBe(typed);
    }
  });
});
