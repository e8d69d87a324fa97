// One tile: header, screen, states, status.

import { type Signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { onWake, recallSession } from "../browser";
import type { Connection } from "../core/connection";
import type { Net } from "../core/message";
import { formatPlace, splitTile } from "../core/tiles";
import { cleanTitle, duration, size as sizeWords, spokenWords, statusWords } from "../core/words";
import { Session } from "../session";
import { theme } from "../theme";
import { FactLine, FactStrip, NetChoice, PolicyNotice } from "./facts";
import { Icon } from "./icons";
import { StateBar, StateCard } from "./states";
import { Screen, type Size } from "./terminal";

/** Milliseconds; moves while something counts. */
function useNow(counting: boolean): number {
  const now = useSignal(Date.now());
  useEffect(() => {
    now.value = Date.now();
    if (!counting) return;
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 250);
    return () => clearInterval(timer);
  }, [counting]);
  return now.value;
}

type PaneProps = {
  tile: string;
  /** From the page's address. */
  session: string | null;
  net: Signal<Net>;
  onMenu: () => void;
  onSignIn: () => void;
};

/** What the pane keeps beside its session. */
function usePaneState() {
  return {
    session: useSignal<Session | null>(null),
    size: useSignal<Size>({ cols: 0, rows: 0 }),
    title: useSignal(""),
    tabLeaves: useSignal(false),
    noticeOff: useSignal(""),
  };
}

type PaneState = ReturnType<typeof usePaneState>;

function begin(session: Session, tile: string, wanted: string | null): void {
  const kept = recallSession(tile);
  if (wanted !== null && kept?.session !== wanted) session.attach({ session: wanted, token: null });
  else if (kept !== null) session.attach(kept);
}

function useSession(
  props: PaneProps,
  state: PaneState,
  host: { current: HTMLDivElement | null },
): void {
  useEffect(() => {
    let gone = false;
    let screen: Screen | null = null;
    const ends: (() => void)[] = [];
    const element = host.current;
    if (!element) return;
    const events = {
      input: (bytes: Uint8Array) => state.session.value?.type(bytes),
      resized: (size: Size) => {
        state.size.value = size;
        state.session.value?.resized(size);
      },
      titled: (title: string) => {
        state.title.value = cleanTitle(title);
      },
      reconnect: () => state.session.value?.retry(),
      tabLeaves: (leaves: boolean) => {
        state.tabLeaves.value = leaves;
      },
    };
    void Screen.open(element, events).then((opened) => {
      if (gone) {
        opened.dispose();
        return;
      }
      screen = opened;
      const session = new Session({ tile: props.tile, net: props.net.value }, opened);
      state.size.value = opened.size;
      state.session.value = session;
      ends.push(theme.subscribe(() => opened.retheme()));
      ends.push(onWake((suspect) => session.wake(suspect)));
      begin(session, props.tile, props.session);
    });
    return () => {
      gone = true;
      for (const end of ends) end();
      state.session.value?.dispose();
      screen?.dispose();
    };
  }, []);
}

function EmptyCard({ tile, net, onOpen }: { tile: string; net: Signal<Net>; onOpen: () => void }) {
  const open = useRef<HTMLButtonElement>(null);
  useEffect(() => open.current?.focus(), []);
  return (
    <div class="full">
      <form
        class="full-card stack stack-4"
        onSubmit={(event) => {
          event.preventDefault();
          onOpen();
        }}
      >
        <div>
          <h2>No session on {tile}</h2>
          <p class="dim sm">
            A shell sees this tile and your home to write, the tiles you may read, and nothing else
            of the workspace.
          </p>
        </div>
        <NetChoice
          value={net.value}
          onChange={(choice) => {
            net.value = choice;
          }}
        />
        <div class="row">
          <button ref={open} class="btn primary" type="submit">
            Open a shell
          </button>
        </div>
      </form>
    </div>
  );
}

function StatusBar({ session, size, now }: { session: Session | null; size: Size; now: number }) {
  const connection = session?.connection.value ?? null;
  const words = connection ? statusWords(connection, now) : { tone: null, text: "No session" };
  const roundTrip = session?.roundTrip.value ?? null;
  const pending = session?.pending.value ?? 0;
  return (
    <section class="status" aria-label="Session status">
      <span>
        {connection?.phase.at === "connecting" ? (
          <span class="spin" />
        ) : (
          <span class={`dot ${words.tone ?? "hollow"}`} />
        )}
        {words.text}
        {connection?.phase.at === "live" && roundTrip !== null && (
          <span class="dimmer">{roundTrip} ms</span>
        )}
      </span>
      {connection?.text && (
        <span>
          {size.cols} × {size.rows}
        </span>
      )}
      {connection?.text && <span class="desk-only">UTF-8</span>}
      {pending > 0 && connection?.phase.at !== "live" && <span>{sizeWords(pending)} pending</span>}
      <span class="sp" />
    </section>
  );
}

function Notices({
  session,
  connection,
  now,
  off,
}: {
  session: Session;
  connection: Connection;
  now: number;
  off: Signal<string>;
}) {
  const env = session.env.value;
  const notice = session.notice.value;
  if (connection.phase.at === "stalled") {
    return (
      <div class="note warn">
        <Icon name="clock" />
        <span class="grow">
          <b>No answer for {duration(now - connection.phase.since)}.</b> Your keys are kept and sent
          once, in order, when the connection returns.
        </span>
        <button type="button" class="btn quiet" onClick={() => session.retry()}>
          Reconnect now
        </button>
      </div>
    );
  }
  if (notice !== null) {
    return (
      <div class="note warn" role="alert">
        <Icon name="warn" />
        <span class="grow">{notice}</span>
        <button
          type="button"
          class="ib s"
          aria-label="Dismiss"
          onClick={() => session.dismissNotice()}
        >
          <Icon name="x" />
        </button>
      </div>
    );
  }
  if (connection.phase.at === "live" && !connection.owner) {
    return (
      <div class="note">
        <Icon name="eye" />
        <span class="grow">
          <b>Read-only.</b> Another window types into this session. Keys you press are not sent.
        </span>
        <button type="button" class="btn quiet" onClick={() => session.takeOver()}>
          Type here
        </button>
      </div>
    );
  }
  const id = connection.held?.session ?? "";
  if (env === null || off.value === id) return null;
  return (
    <PolicyNotice
      env={env}
      onDismiss={() => {
        off.value = id;
      }}
    />
  );
}

function isCounting(connection: Connection | null): boolean {
  return connection?.phase.at === "waiting" || connection?.phase.at === "stalled";
}

function isStale(connection: Connection | null): boolean {
  switch (connection?.phase.at) {
    case "waiting":
    case "stopped":
    case "takenOver":
    case "refused":
    case "ended":
      return true;
    case "connecting":
      return connection.held !== null && connection.text;
    case "idle":
    case "live":
    case "stalled":
    case undefined:
      return false;
  }
}

type WorkProps = PaneProps & {
  state: PaneState;
  host: { current: HTMLDivElement | null };
  now: number;
  covered: boolean;
};

/** The screen and what stands above, under or instead of it. */
function Work(props: WorkProps) {
  const { tile, net, state, host, now, covered } = props;
  const session = state.session.value;
  const connection = session?.connection.value ?? null;
  return (
    <div class="work">
      <section
        class={`termwrap${isStale(connection) ? " stale" : ""}${isHeld(connection) ? " held" : ""}`}
        aria-label={`Terminal on ${tile}`}
      >
        {session && connection && (
          <Notices session={session} connection={connection} now={now} off={state.noticeOff} />
        )}
        {state.tabLeaves.value && (
          <div class="note">
            <Icon name="info" />
            <span class="grow">
              <b>Tab leaves the terminal.</b> Ctrl Shift M gives it back to the shell.
            </span>
          </div>
        )}
        <div class="screen">
          <div class="xt" ref={host} inert={covered} />
          {session && connection?.phase.at === "idle" && (
            <EmptyCard
              tile={tile}
              net={net}
              onOpen={() => session.open({ tile, net: net.value })}
            />
          )}
          {session && connection && !connection.text && (
            <StateCard session={session} connection={connection} onSignIn={props.onSignIn} />
          )}
        </div>
        {session && connection && (
          <StateBar session={session} connection={connection} now={now} onSignIn={props.onSignIn} />
        )}
      </section>
    </div>
  );
}

/** Whether the screen keeps its size and scrolls where there is less room. */
function isHeld(connection: Connection | null): boolean {
  if (!connection?.text) return false;
  const { at } = connection.phase;
  return !connection.owner || (at !== "live" && at !== "stalled");
}

/** A terminal on one tile. */
export function Pane(props: PaneProps) {
  const { tile } = props;
  const state = usePaneState();
  const host = useRef<HTMLDivElement>(null);
  useSession(props, state, host);

  const session = state.session.value;
  const connection = session?.connection.value ?? null;
  const env = session?.env.value ?? null;
  const now = useNow(isCounting(connection));
  const spoken = useComputed(() => {
    const current = state.session.value?.connection.value;
    return current ? spokenWords(current) : "";
  });
  const held = connection?.held?.session ?? null;
  useEffect(() => {
    if (connection !== null)
      history.replaceState(null, "", `/${formatPlace({ tile, session: held })}`);
  }, [held, connection === null]);
  useEffect(() => {
    document.title = [state.title.value, tile, "Casemate"]
      .filter((part) => part !== "")
      .join(" · ");
  }, [state.title.value]);

  const covered = connection === null || !connection.text;
  const at = connection?.phase.at;
  useEffect(() => {
    // The card or button that led here is gone, and the focus with it.
    if (!covered && document.activeElement === document.body) state.session.value?.focus();
  }, [covered, at]);

  const { dir, leaf } = splitTile(tile);
  return (
    <main class="main" id="main" tabIndex={-1}>
      <header class="top">
        <button type="button" class="ib phone-only" aria-label="Open tiles" onClick={props.onMenu}>
          <Icon name="menu" />
        </button>
        <div class="crumb">
          <span class="dimmer desk-only">{dir.replace(/\/$/, "")}</span>
          {dir !== "" && <span class="sep desk-only">/</span>}
          <h1 class="trunc">{leaf}</h1>
        </div>
        {env && <FactStrip env={env} />}
      </header>
      {env && <FactLine env={env} />}
      <Work {...props} state={state} host={host} now={now} covered={covered} />
      <StatusBar session={session} size={state.size.value} now={now} />
      <div class="sr" role="status" aria-live="polite">
        {spoken.value}
      </div>
    </main>
  );
}
