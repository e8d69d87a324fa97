import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { type ClientFrame, encodeFrame, parseFrame } from "../src/core/frame";
import { type ClientMessage, encodeMessage, parseMessage } from "../src/core/message";

type Vector = {
  name: string;
  direction: "c2s" | "s2c";
  hex?: string;
  text?: string;
  parsed?: { type: string; hex?: string; seq?: number; iseq?: number };
  error?: string;
};

const folder = new URL("../../tests/wire/", import.meta.url);
const vectors = readdirSync(folder)
  .filter((name) => name.endsWith(".json"))
  .flatMap((name) => JSON.parse(readFileSync(new URL(name, folder), "utf8")) as Vector[]);

const fromHex = (hex: string) => new Uint8Array(Buffer.from(hex, "hex"));
const toHex = (bytes: Uint8Array) => Buffer.from(bytes).toString("hex");

/** What the page understands of a vector from the service, in the form of `parsed`. */
function understood(vector: Vector): unknown {
  if (vector.text !== undefined) {
    const parsed = parseMessage(vector.text);
    return parsed.ok ? parsed.value : null;
  }
  const parsed = parseFrame(fromHex(vector.hex ?? ""));
  if (!parsed.ok) return null;
  if (parsed.value.type === "iack") return parsed.value;
  const { bytes, ...rest } = parsed.value;
  return { ...rest, hex: toHex(bytes) };
}

describe("from the service", () => {
  test.each(vectors.filter((vector) => vector.direction === "s2c"))("$name", (vector) => {
    expect(understood(vector)).toEqual(vector.parsed ?? null);
  });
});

describe("to the service", () => {
  const sent = vectors.filter((vector) => vector.direction === "c2s" && vector.parsed);
  test.each(sent)("$name", ({ hex, text, parsed }) => {
    if (text !== undefined) {
      expect(JSON.parse(encodeMessage(parsed as ClientMessage))).toEqual(JSON.parse(text));
      return;
    }
    const frame =
      parsed?.type === "input"
        ? { type: "input", iseq: parsed.iseq ?? 0, bytes: fromHex(parsed.hex ?? "") }
        : { type: "ack", seq: parsed?.seq ?? 0 };
    expect(toHex(encodeFrame(frame as ClientFrame))).toBe(hex);
  });
});

test("there are vectors of each kind", () => {
  const kinds = new Set(
    vectors.map((vector) =>
      [
        vector.direction,
        vector.hex === undefined ? "text" : "hex",
        vector.error ? "bad" : "good",
      ].join(" "),
    ),
  );
  expect(kinds.size).toBe(8);
});

test("no random bytes break the parsers", () => {
  let seed = 0x2545f491;
  const next = () => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
    return seed >>> 16;
  };
  for (let round = 0; round < 20_000; round += 1) {
    const bytes = Uint8Array.from({ length: next() % 24 }, () => next() & 0xff);
    if (bytes.length > 0) bytes[0] = next() % 8;
    const frame = parseFrame(bytes);
    if (frame.ok && frame.value.type === "output") {
      expect(bytes.length).toBeGreaterThan(9);
      expect(Number.isSafeInteger(frame.value.seq)).toBe(true);
    }
    const message = parseMessage(Buffer.from(bytes).toString("latin1"));
    expect(message.ok).toBe(false);
  }
});

test("every field of ready is checked", () => {
  const ready = vectors.find((vector) => vector.name === "ready");
  const good = JSON.parse(ready?.text ?? "{}") as Record<string, unknown>;
  expect(parseMessage(JSON.stringify(good)).ok).toBe(true);
  for (const field of Object.keys(good)) {
    expect(parseMessage(JSON.stringify({ ...good, [field]: [[]] })).ok, field).toBe(false);
  }
  const env = good["env"] as Record<string, unknown>;
  for (const field of Object.keys(env)) {
    const bad = { ...good, env: { ...env, [field]: { a: 1 } } };
    expect(parseMessage(JSON.stringify(bad)).ok, `env.${field}`).toBe(false);
  }
});
