// What the page asks of the browser and of the service over HTTP.

import { signal } from "@preact/signals";
import type { Held } from "./core/connection";
import { readJson } from "./core/fields";
import type { Parsed } from "./core/frame";
import type { Net } from "./core/message";
import { type Me, parseMe, parseTiles, type Tile } from "./core/tiles";

/** Lets xterm.js add style sheets under a policy that allows only those with the page's nonce. */
export function lendNonce(): void {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content;
  if (!nonce) return;
  const create = document.createElement.bind(document);
  document.createElement = (name: string, options?: ElementCreationOptions): HTMLElement => {
    const element = create(name, options);
    if (element instanceof HTMLStyleElement) element.nonce = nonce;
    return element;
  };
}

/** Answer to a request: the body, or the HTTP status (`null` where there was none). */
export type Answer<T> = { ok: true; value: T } | { ok: false; status: number | null };

async function ask<T>(
  path: string,
  init: RequestInit,
  read: (text: string) => Parsed<T>,
): Promise<Answer<T>> {
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      ...init,
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
    });
    text = await response.text();
  } catch {
    return { ok: false, status: null };
  }
  if (!response.ok) return { ok: false, status: response.status };
  const parsed = read(text);
  return parsed.ok ? parsed : { ok: false, status: 500 };
}

/** Trades the code of a login link for the session cookie. */
export function postLogin(code: string): Promise<Answer<null>> {
  return post("/v1/auth/login", { code });
}

/** Ends the login of this browser; shells go on. */
export function postLogout(): Promise<Answer<null>> {
  return post("/v1/auth/logout", {});
}

function post(path: string, body: object): Promise<Answer<null>> {
  const init = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  return ask(path, init, () => ({ ok: true, value: null }));
}

/** Who is signed in. */
export function fetchMe(): Promise<Answer<Me>> {
  return ask("/v1/auth/me", {}, parseMe);
}

/** The tiles that the person may see. */
export function fetchTiles(): Promise<Answer<Tile[]>> {
  return ask("/v1/tiles", {}, parseTiles);
}

/** What a tab keeps of a session over a reload: enough to come back to it. */
export type Kept = Held & { net: Net };

const KEPT = "casemate.session:";
/** Storage says nothing to its own tab, so whoever shows what is kept follows this. */
const keptChanges = signal(0);

export function recallSession(tile: string): Kept | null {
  void keptChanges.value;
  const text = sessionStorage.getItem(KEPT + tile);
  if (text === null) return null;
  const kept = readJson(text, (fields) => ({
    session: fields.text("session"),
    token: fields.text("token"),
    net: fields.oneOf("net", ["internet", "host", "none"]),
  }));
  return kept.ok ? kept.value : null;
}

export function keepSession(tile: string, kept: Kept): void {
  sessionStorage.setItem(KEPT + tile, JSON.stringify(kept));
  keptChanges.value += 1;
}

export function forgetSession(tile: string): void {
  sessionStorage.removeItem(KEPT + tile);
  keptChanges.value += 1;
}

/** Calls back when the page is looked at again, the network came back, or the machine slept. */
export function onWake(wake: (suspect: boolean) => void): () => void {
  const ends = new AbortController();
  const { signal } = ends;
  window.addEventListener("online", () => wake(true), { signal });
  window.addEventListener("pageshow", (event) => event.persisted && wake(true), { signal });
  document.addEventListener(
    "visibilitychange",
    () => document.visibilityState === "visible" && wake(false),
    { signal },
  );
  // The monotonic clock stands still while the machine sleeps, the wall clock does not.
  const drift = () => Date.now() - performance.now();
  let last = drift();
  const watch = setInterval(() => {
    const now = drift();
    if (now - last > SLEEP_MS) wake(true);
    last = now;
  }, 5_000);
  signal.addEventListener("abort", () => clearInterval(watch));
  return () => ends.abort();
}

const SLEEP_MS = 30_000;
