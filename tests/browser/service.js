// The service under test, as the environment names it.

import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const run = promisify(execFile);

function need(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: start these tests with tests/browser/run`);
  return value;
}

/** Address of the service, without a slash at its end. */
export const url = need("CASEMATE_URL");

/** A fresh login link. */
export async function loginLink() {
  const { stdout } = await run("sh", ["-c", need("CASEMATE_LOGIN_LINK")]);
  const link = /https?:\/\/\S+#\S+/.exec(stdout)?.[0];
  if (!link) throw new Error(`no link in: ${stdout}`);
  return link;
}

async function answers() {
  try {
    return (await fetch(`${url}/healthz`)).ok;
  } catch {
    return false;
  }
}

async function until(what, holds) {
  for (const end = Date.now() + 60_000; Date.now() < end; await sleep(50)) {
    if (await holds()) return;
  }
  throw new Error(`not within a minute: ${what}`);
}

/** `kill -9` of the service; its keepers live on. */
export async function kill() {
  const pid = Number((await readFile(need("CASEMATE_SERVICE_PID_FILE"), "utf8")).trim());
  process.kill(pid, "SIGKILL");
  await until("the service is gone", async () => !(await answers()));
}

/** Starts the service again. */
export async function restart() {
  await run("sh", ["-c", need("CASEMATE_RESTART")]);
  await until("the service answers", answers);
}
