// Flow of bytes in both directions: acknowledgement of parsed output, and input that is neither
// lost nor typed twice across a drop. Pure; the caller brings the clock.

import { INPUT_BYTES_MAX } from "./frame";

/** Output is acknowledged after this many parsed bytes … */
export const ACK_BYTES = 65_536;
/** … or this many milliseconds after the first one, whichever comes first. */
export const ACK_DELAY_MS = 50;
/** Most input that is under way without an acknowledgement. */
export const INPUT_FLIGHT_MAX = 2 * INPUT_BYTES_MAX;
/** Most input that is kept for the service; more is refused, never cut. */
export const INPUT_KEPT_MAX = 8 * 1024 * 1024;

/** Counts what arrived and what the terminal has parsed of it. */
export class OutputFlow {
  #received = 0;
  #parsed = 0;
  #acked = 0;
  #oldest: number | null = null;

  /** Offset of the first byte that has not arrived: where a resume continues. */
  get received(): number {
    return this.#received;
  }

  /** A new session, or a place further on in the same one. */
  restart(seq: number): void {
    this.#received = seq;
    this.#parsed = seq;
    this.#acked = seq;
    this.#oldest = null;
  }

  /**
   * Takes a frame in. Returns the bytes that are new, without those that came before; `null` for
   * a frame that would leave a hole.
   */
  take(seq: number, bytes: Uint8Array): Uint8Array | null {
    if (seq > this.#received) return null;
    const known = this.#received - seq;
    if (known >= bytes.length) return bytes.subarray(bytes.length);
    this.#received = seq + bytes.length;
    return bytes.subarray(known);
  }

  /** The terminal has parsed everything before `offset`. Returns an offset to acknowledge. */
  parsed(offset: number, now: number): number | null {
    // A callback of an earlier attach may come late, after a restart at a higher offset.
    if (offset <= this.#parsed) return null;
    this.#parsed = offset;
    this.#oldest ??= now;
    return this.due(now);
  }

  /** Returns an offset to acknowledge now, if there is one. */
  due(now: number): number | null {
    if (this.#oldest === null) return null;
    const enough = this.#parsed - this.#acked >= ACK_BYTES;
    if (!enough && now - this.#oldest < ACK_DELAY_MS) return null;
    this.#acked = this.#parsed;
    this.#oldest = null;
    return this.#acked;
  }

  /** Whether parsed bytes wait for their acknowledgement. */
  get owes(): boolean {
    return this.#oldest !== null;
  }
}

/** A piece of input to send. */
export type InputPiece = { iseq: number; bytes: Uint8Array };

/** Numbers input and keeps it until the service has it. */
export class InputFlow {
  /** What the service has not acknowledged, in order; the first byte is at `#acked`. */
  #kept: Uint8Array[] = [];
  #acked = 0;
  #sent = 0;
  #end = 0;
  #waitingSince: number | null = null;

  /** Bytes that the service has not acknowledged. */
  get pending(): number {
    return this.#end - this.#acked;
  }

  /** Offset up to which the service has acknowledged. */
  get acked(): number {
    return this.#acked;
  }

  /** Offset up to which input was sent. */
  get sent(): number {
    return this.#sent;
  }

  /** Since when an answer to sent input is missing; `null` while none is. */
  get waitingSince(): number | null {
    return this.#waitingSince;
  }

  /** Keeps input for sending. Returns whether there was room; without room nothing is kept. */
  push(bytes: Uint8Array): boolean {
    if (this.pending + bytes.length > INPUT_KEPT_MAX) return false;
    if (bytes.length > 0) this.#kept.push(bytes.slice());
    this.#end += bytes.length;
    return true;
  }

  /** Returns what may be sent now, in frames of the largest allowed size. */
  next(now: number): InputPiece[] {
    const pieces: InputPiece[] = [];
    const limit = Math.min(this.#end, this.#acked + INPUT_FLIGHT_MAX);
    while (this.#sent < limit) {
      const bytes = this.#slice(this.#sent, Math.min(limit, this.#sent + INPUT_BYTES_MAX));
      pieces.push({ iseq: this.#sent, bytes });
      this.#sent += bytes.length;
      this.#waitingSince ??= now;
    }
    return pieces;
  }

  /** The service has everything before `iseq`. Returns whether that can be. */
  ack(iseq: number, now: number): boolean {
    if (iseq > this.#sent) return false;
    if (iseq <= this.#acked) return true;
    this.#drop(iseq - this.#acked);
    this.#acked = iseq;
    this.#waitingSince = this.#sent > iseq ? now : null;
    return true;
  }

  /** A new socket: the service says what it has, the rest is sent again by `next`. Returns whether that can be. */
  resume(iseq: number): boolean {
    if (iseq < this.#acked || iseq > this.#end) return false;
    this.#drop(iseq - this.#acked);
    this.#acked = iseq;
    this.#sent = iseq;
    this.#waitingSince = null;
    return true;
  }

  /** The count was made elsewhere (before a reload, or it is new): what is kept goes after it. */
  adopt(iseq: number): void {
    this.#end = iseq + this.pending;
    this.#acked = iseq;
    this.#sent = iseq;
    this.#waitingSince = null;
  }

  /** Forgets everything: a new session, or one that this page does not type into. */
  restart(): void {
    this.#kept = [];
    this.#acked = 0;
    this.#sent = 0;
    this.#end = 0;
    this.#waitingSince = null;
  }

  #drop(count: number): void {
    let left = count;
    while (left > 0) {
      const first = this.#kept[0];
      if (first === undefined) return;
      if (first.length > left) {
        this.#kept[0] = first.subarray(left);
        return;
      }
      left -= first.length;
      this.#kept.shift();
    }
  }

  #slice(from: number, to: number): Uint8Array {
    const out = new Uint8Array(to - from);
    let at = this.#acked;
    for (const chunk of this.#kept) {
      const start = Math.max(from - at, 0);
      const end = Math.min(to - at, chunk.length);
      if (start < end) out.set(chunk.subarray(start, end), at + start - from);
      at += chunk.length;
      if (at >= to) break;
    }
    return out;
  }
}
