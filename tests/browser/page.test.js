// The page against a real service and real sandboxes, in Debian's Chromium.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ended, enter, launch, line, lines, profile, size, status } from "./browser.js";
import { kill, loginLink, restart, url } from "./service.js";

let browser;
let context;
let complaints;
let page;
let broken = null;

/** A test that goes on where the one before ended, and fails at once where that failed. */
function step(name, run) {
  test(name, async () => {
    assert.equal(broken, null, "an earlier step failed");
    broken = name;
    await run();
    broken = null;
  });
}

before(async () => {
  browser = await launch({ webgl: false });
  ({ context, complaints } = await profile(browser));
  page = await context.newPage();
});

after(async () => {
  await browser?.close();
});

step("a page without a login asks for one", async () => {
  await page.goto(`${url}/`);
  await page.waitForURL(`${url}/login`);
  await page.getByLabel("Sign-in link or code").waitFor();
});

step("a code that was never minted is refused in words", async () => {
  await page.getByLabel("Sign-in link or code").fill(`${url}/login#AAAAAAAAAAAAAAAAAAAAAA`);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("This sign-in link doesn’t work").waitFor();
});

step("a link signs in once, and its code is gone from address and history", async () => {
  const link = await loginLink();
  const code = link.slice(link.indexOf("#") + 1);
  assert.ok(code.length >= 22, "128 bits");
  const fresh = await context.newPage();
  await page.close();
  page = fresh;
  await page.goto(link);
  await page.getByRole("button", { name: "Open a shell" }).waitFor();
  assert.ok(!page.url().includes(code));
  await page.goBack();
  assert.ok(!page.url().includes(code), page.url());
  await page.goForward();
  await page.getByRole("button", { name: "Open a shell" }).waitFor();

  const other = await profile(browser);
  const thief = await other.context.newPage();
  await thief.goto(link);
  await thief.getByText("This sign-in link doesn’t work").waitFor();
  await other.context.close();
});

step("a shell opens on a tile and says what policy decided", async () => {
  await page.getByRole("link", { name: "apps/hello" }).click();
  await page.getByRole("radio", { name: /^none/ }).check();
  await page.getByRole("button", { name: "Open a shell" }).click();
  await status(page, "Connected");
  const facts = await page.locator(".facts").innerText();
  assert.match(facts, /net\s*none/);
  assert.match(facts, /layer\s*ephemeral/);
  assert.match(facts, /admin/);
});

step("what is typed runs", async () => {
  await enter(page, "echo $((6*7))");
  await line(page, "42");
});

step("the size follows the window", async () => {
  for (const [width, height] of [
    [900, 600],
    [1200, 800],
  ]) {
    const old = await size(page);
    await page.setViewportSize({ width, height });
    await page.waitForFunction(
      (text) => !document.querySelector(".status").innerText.includes(text),
      `${old.cols} × ${old.rows}`,
    );
    // The size is sent at once, and again 50 ms after the last change.
    await sleep(300);
    const { cols, rows } = await size(page);
    await enter(page, "clear; stty size");
    await line(page, `${rows} ${cols}`);
  }
});

step("more output than the window arrives, because it is acknowledged", async () => {
  await enter(page, "clear; seq 1 400000; echo end $((1+1))");
  await line(page, "end 2");
  const shown = await lines(page);
  assert.ok(shown.includes("400000"));
});

/** The numbers of lines `n 1`, `n 2`, … on the screen. */
async function counted() {
  const numbers = (await lines(page)).map((row) => /^n (\d+)$/.exec(row)?.[1]).filter(Boolean);
  return numbers.map(Number);
}

step("a killed service comes back under a running program, and no line is lost", async () => {
  await enter(page, "clear; i=0; while sleep 0.3; do i=$((i+1)); echo n $i; done");
  await line(page, "n 4");
  await kill();
  await ended(page, "Reconnecting");
  await page.getByRole("button", { name: "Reconnect now" }).waitFor();
  const before = await counted();
  assert.ok(before.includes(4), "the text stays on the screen");
  await sleep(1500);
  await restart();
  await status(page, "Connected");
  await line(page, new RegExp(`^n ${before.at(-1) + 10}$`));
  await page.keyboard.press("Control+C");
  const after = await counted();
  assert.deepEqual(
    after,
    Array.from({ length: after.length }, (_, at) => at + 1),
    "each number once, in order",
  );
});

step("a killed service comes back under a running top", async () => {
  await enter(page, "clear; top -d 1");
  const first = await line(page, /^top - \d\d:\d\d:\d\d/);
  await kill();
  await ended(page, "Reconnecting");
  assert.ok((await lines(page)).some((row) => row.startsWith("top - ")));
  await restart();
  await status(page, "Connected");
  await page.waitForFunction((old) => {
    const row = document.querySelector(".xterm-rows > div").textContent.trimEnd();
    return row.startsWith("top - ") && row !== old;
  }, first);
  await page.keyboard.press("q");
  await enter(page, "clear; echo back $((2+3))");
  await line(page, "back 5");
});

step("keys of an outage are typed once, in order", async () => {
  await enter(page, "clear; cat");
  await kill();
  await ended(page, "Reconnecting");
  await enter(page, "typed while away");
  await page.getByText(/typed, not yet sent/).waitFor();
  await restart();
  await status(page, "Connected");
  await line(page, "typed while away");
  await enter(page, "after it");
  await page.waitForFunction(
    () => document.querySelector(".xterm-rows").innerText.split("after it").length === 3,
  );
  const shown = (await lines(page)).filter((row) => /^(typed while away|after it)$/.test(row));
  assert.deepEqual(shown, ["typed while away", "typed while away", "after it", "after it"]);
  await page.keyboard.press("Control+D");
});

step("a reload comes back to the same shell with its text", async () => {
  await enter(page, "clear; kept=yes; echo marker $((40+4))");
  await line(page, "marker 44");
  await page.reload();
  await status(page, "Connected");
  await line(page, "marker 44");
  await enter(page, "echo still $kept");
  await line(page, "still yes");
});

step("a second window watches, takes over and gives back", async () => {
  const second = await context.newPage();
  await second.goto(page.url());
  await second.getByText("Read-only.").waitFor();
  await line(second, "still yes");
  await second.getByRole("button", { name: "Type here" }).click();
  await ended(page, "This session is being typed in elsewhere");
  await status(second, "Connected");
  await enter(second, "echo second $((1+2))");
  await line(second, "second 3");
  await page.getByRole("button", { name: "Take it back" }).click();
  await ended(second, "This session is being typed in elsewhere");
  await line(page, "second 3");
  await enter(page, "echo first $((3+4))");
  await line(page, "first 7");
  await second.close();
});

step("an exit says its code, keeps the text, and Enter opens a new shell under it", async () => {
  await enter(page, "exit 7");
  await ended(page, "Exited with code 7");
  assert.ok((await lines(page)).includes("first 7"));
  await page.keyboard.press("Enter");
  await status(page, "Connected");
  assert.ok((await lines(page)).includes("first 7"), "the old text is still there");
  await enter(page, "echo new $((5+5))");
  await line(page, "new 10");
});

step("a shell that ended while the page was away says so and opens again", async () => {
  await enter(page, "sleep 2; exit");
  await sleep(200);
  await kill();
  await ended(page, "Reconnecting");
  await sleep(3000);
  await restart();
  await ended(page, /^(Exited with code 0|This shell ended while you were away)$/);
  assert.ok((await lines(page)).includes("new 10"));
});

step("the same policy holds with the terminal drawn by WebGL", async () => {
  const drawing = await launch({ webgl: true });
  try {
    const other = await profile(drawing);
    const drawn = await other.context.newPage();
    await drawn.goto(await loginLink());
    await drawn.getByRole("radio", { name: /^none/ }).check();
    await drawn.getByRole("button", { name: "Open a shell" }).click();
    await status(drawn, "Connected");
    await drawn.locator(".xterm-screen canvas").first().waitFor();
    // The picture has no text, but a program can set the title.
    await enter(drawn, "printf '\\033]0;answer %s\\007' $((6*7)); sleep 5; exit");
    await drawn.waitForFunction(() => document.title.startsWith("answer 42 · "));
    await ended(drawn, "Exited with code 0");
    assert.deepEqual(other.complaints, []);
  } finally {
    await drawing.close();
  }
});

step("nothing was blocked by the policy and nothing was thrown, in the whole run", () => {
  assert.deepEqual(complaints, []);
});
