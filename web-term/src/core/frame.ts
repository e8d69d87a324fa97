// Binary frames of casemate.term.v1: the data plane. All numbers are big-endian.

/** What a parser says: the value, or why there is none. */
export type Parsed<T> = { ok: true; value: T } | { ok: false; why: string };

/** A binary message from the service. Offsets count bytes from the start of the session. */
export type ServerFrame =
  | { type: "output"; seq: number; bytes: Uint8Array }
  | { type: "iack"; seq: number };

/** A binary message to the service. */
export type ClientFrame =
  | { type: "input"; iseq: number; bytes: Uint8Array }
  | { type: "ack"; seq: number };

/** Most bytes of input in one frame. */
export const INPUT_BYTES_MAX = 65_536;
/** Largest size of a terminal that the service accepts. */
export const SIZE_MAX = { cols: 1000, rows: 500 } as const;

const OUTPUT = 0x01;
const INPUT = 0x02;
const ACK = 0x03;
const IACK = 0x04;
const HEADER = 9;

function refused<T>(why: string): Parsed<T> {
  return { ok: false, why };
}

/** Parses a binary message. Bytes of the result are a view into it. */
export function parseFrame(message: Uint8Array): Parsed<ServerFrame> {
  const kind = message[0];
  if (kind === undefined) return refused("an empty message");
  if (message.length < HEADER) return refused("a frame shorter than its header");
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const offset = Number(view.getBigUint64(1));
  if (!Number.isSafeInteger(offset)) return refused("an offset beyond 2^53");
  switch (kind) {
    case OUTPUT:
      if (message.length === HEADER) return refused("output without bytes");
      return {
        ok: true,
        value: { type: "output", seq: offset, bytes: message.subarray(HEADER) },
      };
    case IACK:
      if (message.length !== HEADER) return refused("an input acknowledgement of a wrong length");
      return { ok: true, value: { type: "iack", seq: offset } };
    default:
      return refused(`a frame of unknown type ${kind}`);
  }
}

/** Encodes a binary message. */
export function encodeFrame(frame: ClientFrame): Uint8Array<ArrayBuffer> {
  const bytes = frame.type === "input" ? frame.bytes : new Uint8Array();
  const message = new Uint8Array(HEADER + bytes.length);
  const view = new DataView(message.buffer);
  view.setUint8(0, frame.type === "input" ? INPUT : ACK);
  view.setBigUint64(1, BigInt(frame.type === "input" ? frame.iseq : frame.seq));
  message.set(bytes, HEADER);
  return message;
}
