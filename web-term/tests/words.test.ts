import { describe, expect, test } from "vitest";
import { isReport } from "../src/core/report";
import { formatPlace, loginCode, parsePlace, parseTiles } from "../src/core/tiles";
import { cleanTitle, duration, exitWords, size } from "../src/core/words";

test("an exit says its outcome first", () => {
  const exit = { code: null, signal: null, by: null } as const;
  expect(exitWords({ ...exit, reason: "exited", code: 7 }).title).toBe("Exited with code 7");
  expect(exitWords({ ...exit, reason: "signaled", signal: 15 }).title).toBe(
    "Stopped by signal TERM",
  );
  expect(exitWords({ ...exit, reason: "signaled", signal: 40 }).title).toBe("Stopped by signal 40");
  expect(exitWords({ ...exit, reason: "exited", code: 0 }).tone).toBe("ok");
  expect(exitWords({ ...exit, reason: "cancelled", by: "reset" }).title).toBe(
    "Ended: the system layer was reset",
  );
});

test("durations and sizes", () => {
  expect([0, 4_400, 60_000, 286_000, 11_520_000].map(duration)).toEqual([
    "0 s",
    "4 s",
    "1 min",
    "4 min 46 s",
    "3 h 12 min",
  ]);
  expect([1, 12, 2048, 5 * 1024 * 1024].map(size)).toEqual([
    "1 byte",
    "12 bytes",
    "2.0 KiB",
    "5.0 MiB",
  ]);
});

test("a title holds no control characters and no direction marks", () => {
  expect(cleanTitle("a\u001b]0;b\u0007\u202ec\n")).toBe("a]0;bc");
  expect(cleanTitle("x".repeat(1000)).length).toBe(256);
});

describe("the address", () => {
  test("round trips", () => {
    for (const place of [
      { tile: "apps/hello", session: null },
      { tile: "apps/a b#c", session: "ses_01890a5d-ac96-774b-bcce-b302099a8057" },
      { tile: "apps/é%", session: null },
    ]) {
      expect(parsePlace(formatPlace(place))).toEqual(place);
    }
  });

  test("that is none is none", () => {
    for (const bad of ["", "#", "#%ff", "#a:b", "#apps/a:ses_"]) expect(parsePlace(bad)).toBe(null);
  });

  test("of a login link holds its code", () => {
    const code = "q9WDm1hJQkKc3vN0b2xT5A";
    expect(loginCode(`http://127.0.0.1:8642/login#${code}\n`)).toBe(code);
    expect(loginCode(`#${code}`)).toBe(code);
    expect(loginCode(code)).toBe(code);
    for (const bad of ["", "#", "http://127.0.0.1:8642/login", "#<script>", "short"]) {
      expect(loginCode(bad)).toBe(null);
    }
  });
});

test("tiles without a tile are refused", () => {
  expect(parseTiles('{"tiles":[{"tile":"apps/a","name":null}]}')).toEqual({
    ok: true,
    value: [{ tile: "apps/a", name: null }],
  });
  for (const bad of ["", "[]", "{}", '{"tiles":[{}]}', '{"tiles":[{"tile":1}]}']) {
    expect(parseTiles(bad).ok).toBe(false);
  }
});

describe("answers of the terminal", () => {
  const bytes = (text: string) => new TextEncoder().encode(text);
  test.each([
    "\u001b[?62;22c",
    "\u001b[>0;276;0c",
    "\u001b[12;40R",
    "\u001b[0n",
    "\u001b[?2026;2$y",
    "\u001bP1+r544e\u001b\\",
    "\u001b]11;rgb:0e0e/1010/1313\u001b\\",
    "\u001b[I\u001b[O",
  ])("%j is one", (answer) => expect(isReport(bytes(answer))).toBe(true));
  test.each([
    "a",
    "\u001b",
    "\u001b[A",
    "\u001bOA",
    "\u001b[3~",
    "\u001b[200~ls\u001b[201~",
    "\u001b[0nls",
    "\r",
  ])("%j is typed", (typed) => expect(isReport(bytes(typed))).toBe(false));
});
