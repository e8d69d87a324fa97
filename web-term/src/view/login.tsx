// The sign-in page: takes the code of a login link out of the address and trades it for a cookie.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { postLogin } from "../browser";
import { loginCode } from "../core/tiles";
import { Icon, Mark } from "./icons";

type State =
  | { at: "asking" }
  | { at: "checking" }
  | { at: "failed"; title: string; detail: string };

function failure(status: number | null): State {
  if (status === null) {
    return {
      at: "failed",
      title: "The service can’t be reached",
      detail: "The code was not used. Try again when the service answers.",
    };
  }
  if (status === 429) {
    return {
      at: "failed",
      title: "Signing in is paused",
      detail: "Too many codes were tried. Wait a minute, then try again.",
    };
  }
  if (status >= 500) {
    return {
      at: "failed",
      title: "Something went wrong on our side",
      detail: `The service answered with ${status}. Its log says why.`,
    };
  }
  return {
    at: "failed",
    title: "This sign-in link doesn’t work",
    detail: "A link works once, for ten minutes. Print a new one on the host.",
  };
}

function Picture() {
  return (
    <div class="lg-b" aria-hidden="true">
      <div class="lg-pic">
        <pre>
          <span class="ro">#</span> casemate view{"\n"}
          <span class="a4">apps/your-tile</span>
          {"      "}
          <span class="a4">rw</span>
          {"   "}
          <span class="ro">the tile you opened</span>
          {"\n"}
          <span class="a4">homes/you</span>
          {"           "}
          <span class="a4">rw</span>
          {"   "}
          <span class="ro">your home</span>
          {"\n"}
          <span class="ro">apps/shared-tile</span>
          {"    "}
          <span class="ro">{"ro   tiles you may read"}</span>
          {"\n"}
          <span class="ro">#</span> <span class="cur" />
        </pre>
        <p class="dim sm">
          Other people’s homes, keys and tiles are not in this list. They are not hidden from the
          shell; they are not there.
        </p>
      </div>
    </div>
  );
}

function Checking() {
  return (
    <div class="stack stack-3">
      <div class="steps" role="status">
        <div class="step now">
          <span class="spin" />
          <span>Opening your session</span>
        </div>
      </div>
      <p class="xs dimmer">The code works once and has been removed from this page’s address.</p>
    </div>
  );
}

/** `/login`, with or without a code in the fragment. */
export function Login() {
  const state = useSignal<State>({ at: "asking" });
  const field = useRef<HTMLInputElement>(null);

  const trade = async (code: string) => {
    state.value = { at: "checking" };
    const answer = await postLogin(code);
    if (answer.ok) location.replace("/");
    else state.value = failure(answer.status);
  };

  const submit = (event: Event) => {
    event.preventDefault();
    const code = loginCode(field.current?.value ?? "");
    if (code !== null) {
      void trade(code);
      return;
    }
    state.value = {
      at: "failed",
      title: "That is not a sign-in link",
      detail: "Paste the whole line that casemate login prints.",
    };
  };

  useEffect(() => {
    document.title = "Sign in · Casemate";
    const code = loginCode(location.hash);
    if (location.hash !== "") history.replaceState(null, "", "/login");
    if (code !== null) void trade(code);
    else field.current?.focus();
  }, []);

  const now = state.value;
  return (
    <main class="login" id="main" tabIndex={-1}>
      <div class="lg-a">
        <form class="lg-box" noValidate onSubmit={submit}>
          <div class="stack stack-3">
            <span class="lg-mark">
              <Mark />
            </span>
            <h1>Sign in to Casemate</h1>
            <p class="dim sm lg-host">{location.host}</p>
          </div>
          {now.at === "failed" && (
            <div class="call err" role="alert">
              <Icon name="warn" />
              <div>
                <b>{now.title}</b>
                <p>{now.detail}</p>
              </div>
            </div>
          )}
          {now.at === "checking" ? (
            <Checking />
          ) : (
            <div class="stack stack-4">
              <div class="field">
                <label for="link">Sign-in link or code</label>
                <input
                  ref={field}
                  class="input lg mono"
                  id="link"
                  autoComplete="off"
                  autoCapitalize="none"
                  spellcheck={false}
                  aria-describedby="link-help"
                />
                <span class="xs dimmer" id="link-help">
                  <code>casemate login</code> on the host prints one. It works once, for ten
                  minutes.
                </span>
              </div>
              <button class="btn primary lg block" type="submit">
                Sign in
              </button>
            </div>
          )}
        </form>
      </div>
      <Picture />
    </main>
  );
}
