// A browser, pages that report what the policy blocked, and how to read a terminal.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-default-apps",
];
const PATIENCE = 30_000;

/** Starts a browser. Without `webgl` the terminal's text stands in the document and can be read. */
export function launch({ webgl }) {
  return chromium.launch({
    executablePath: process.env.CASEMATE_CHROMIUM ?? "/usr/bin/chromium",
    args: webgl ? FLAGS : [...FLAGS, "--disable-3d-apis"],
  });
}

/** A browser profile whose pages write down what the policy blocked and what they threw. */
export async function profile(browser) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
  const complaints = [];
  context.setDefaultTimeout(PATIENCE);
  await context.exposeFunction("casemateComplain", (what) => complaints.push(what));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.casemateComplain(
        `policy: ${event.violatedDirective} blocked ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber}`,
      );
    });
  });
  context.on("weberror", (error) => complaints.push(`thrown: ${error.error().stack}`));
  return { context, complaints };
}

/** The lines on the screen of a page's terminal. */
export function lines(page) {
  return page.evaluate(() =>
    [...document.querySelectorAll(".xterm-rows > div")].map((row) => row.textContent.trimEnd()),
  );
}

/** Waits for a line that is exactly `text`, or that a pattern matches; returns it. */
export async function line(page, wanted) {
  const source = typeof wanted === "string" ? null : wanted.source;
  const found = await page
    .waitForFunction(
      ([text, pattern]) => {
        const rows = [...document.querySelectorAll(".xterm-rows > div")];
        const test = (row) => (pattern === null ? row === text : new RegExp(pattern).test(row));
        return rows.map((row) => row.textContent.trimEnd()).find(test);
      },
      [String(wanted), source],
    )
    .catch(async (error) => {
      throw new Error(`no line ${wanted} in:\n${(await lines(page)).join("\n")}\n${error.message}`);
    });
  return found.jsonValue();
}

/** Types into the terminal, with Enter at the end. */
export async function enter(page, text) {
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
}

/** Waits for the words of the status bar. */
export async function status(page, words) {
  await page
    .locator(".status > span:first-child", { hasText: words })
    .waitFor()
    .catch(async (error) => {
      throw new Error(`status is ${await page.locator(".status").innerText()}: ${error.message}`);
    });
}

/** Columns and rows as the status bar shows them. */
export async function size(page) {
  const text = await page.locator(".status").innerText();
  const match = /(\d+) × (\d+)/.exec(text);
  assert.ok(match, text);
  return { cols: Number(match[1]), rows: Number(match[2]) };
}

/** Waits for the title of the bar under the text; a pattern is to match the whole of it. */
export function ended(page, title) {
  const big = page.locator(".endbar .big");
  return big
    .filter({ hasText: typeof title === "string" ? new RegExp(`^${title}$`) : title })
    .waitFor();
}
