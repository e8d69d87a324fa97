// What stands under or instead of the text when a session is not live.

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import type { Connection, Phase } from "../core/connection";
import type { TermCode } from "../core/message";
import { clock, duration, exitWords, refusalWords, size, type Tone } from "../core/words";
import type { Session } from "../session";
import { Icon, type IconName } from "./icons";

type At<P extends Phase["at"]> = Extract<Phase, { at: P }>;

const TONE_ICONS: { [T in Tone]: IconName } = {
  ok: "check",
  warn: "warn",
  err: "warn",
  acc: "phone",
};

function EndBar(props: {
  tone: Tone;
  lead: ComponentChildren;
  title: string;
  detail: string;
  children: ComponentChildren;
}) {
  return (
    <section class={`endbar e-${props.tone}`} aria-label="State of the session">
      {props.lead}
      <div class="grow">
        <div class="big">{props.title}</div>
        <div class="dim sm">{props.detail}</div>
      </div>
      <div class="acts">{props.children}</div>
    </section>
  );
}

function Rule({ children }: { children: string }) {
  return <div class="rule">{children}</div>;
}

const RING = 2 * Math.PI * 14;

function CountRing({ left, whole }: { left: number; whole: number }) {
  const share = whole > 0 ? Math.min(1, Math.max(0, left / whole)) : 0;
  const seconds = Math.max(0, Math.ceil(left / 1000));
  return (
    <svg class="count-ring" viewBox="0 0 34 34" role="img" aria-label={`${seconds} seconds`}>
      <circle class="cr-bg" cx="17" cy="17" r="14" />
      <circle
        class="cr-fg"
        cx="17"
        cy="17"
        r="14"
        stroke-dasharray={`${(share * RING).toFixed(1)} ${RING.toFixed(1)}`}
      />
      <text x="17" y="21">
        {seconds}
      </text>
    </svg>
  );
}

function unsent(pending: number): string {
  return pending === 0 ? "" : ` ${size(pending)} typed, not yet sent.`;
}

function runsOn(connection: Connection): string {
  return connection.held ? " The shell keeps running without a viewer." : "";
}

type BarProps = { session: Session; connection: Connection; now: number };

function WaitingBar({ session, connection, now, phase }: BarProps & { phase: At<"waiting"> }) {
  const whole = useRef({ retryAt: 0, whole: 0 });
  if (whole.current.retryAt !== phase.retryAt) {
    whole.current = { retryAt: phase.retryAt, whole: phase.retryAt - now };
  }
  const left = phase.retryAt - now;
  return (
    <>
      {connection.text && <Rule>{`connection lost ${clock(phase.lostAt)}`}</Rule>}
      <EndBar
        tone="warn"
        lead={<CountRing left={left} whole={whole.current.whole} />}
        title="Reconnecting"
        detail={`Attempt ${connection.attempt} in ${duration(left)}.${runsOn(connection)}${unsent(session.pending.value)}`}
      >
        <button type="button" class="btn quiet" onClick={() => session.stop()}>
          Stop trying
        </button>
        <button type="button" class="btn primary" onClick={() => session.retry()}>
          Reconnect now
        </button>
      </EndBar>
    </>
  );
}

function RefusedBar({
  session,
  connection,
  phase,
  onSignIn,
}: BarProps & { phase: At<"refused">; onSignIn: () => void }) {
  const words = refusalWords(phase.code, phase.message, connection.target);
  return (
    <>
      <Rule>{`closed ${clock(phase.when)}`}</Rule>
      <EndBar
        tone={words.tone}
        lead={<Icon name={TONE_ICONS[words.tone]} tone={words.tone} />}
        title={words.title}
        detail={`${words.detail} ${phase.code}`}
      >
        <RemedyButton
          session={session}
          code={phase.code}
          said={phase.message}
          onSignIn={onSignIn}
        />
      </EndBar>
    </>
  );
}

function RemedyButton(props: {
  session: Session;
  code: TermCode;
  said: string;
  onSignIn: () => void;
}) {
  const { session } = props;
  const { target } = session.connection.value;
  const words = refusalWords(props.code, props.said, target);
  if (words.remedy === "none") return null;
  const run = () => {
    switch (words.remedy) {
      case "signIn":
        props.onSignIn();
        return;
      case "openAgain":
        session.open(target);
        return;
      case "openNone":
        session.open({ ...target, net: "none" });
        return;
      case "reconnect":
        session.retry();
        return;
      case "none":
        return;
    }
  };
  return (
    <button type="button" class="btn primary" onClick={run}>
      {words.action}
    </button>
  );
}

function EndedBar({ session, connection, phase }: BarProps & { phase: At<"ended"> }) {
  const words = exitWords(phase.exit);
  return (
    <>
      <Rule>{`ended ${clock(phase.when)}`}</Rule>
      <EndBar
        tone={words.tone}
        lead={<Icon name={TONE_ICONS[words.tone]} tone={words.tone} />}
        title={words.title}
        detail={words.detail}
      >
        <button type="button" class="btn primary" onClick={() => session.open(connection.target)}>
          Restart
          <span class="kbds" aria-hidden="true">
            <kbd>Enter</kbd>
          </span>
        </button>
      </EndBar>
    </>
  );
}

/** The bar under the text; nothing while the session is live. */
export function StateBar(props: BarProps & { onSignIn: () => void }) {
  const { session, connection } = props;
  const { phase } = connection;
  switch (phase.at) {
    case "waiting":
      return <WaitingBar {...props} phase={phase} />;
    case "connecting":
      if (!connection.text) return null;
      return (
        <EndBar
          tone="warn"
          lead={<span class="spin" />}
          title={connection.held ? "Reconnecting" : "Opening a new shell"}
          detail={`Connecting now.${unsent(session.pending.value)}`}
        >
          <button type="button" class="btn quiet" onClick={() => session.stop()}>
            Stop trying
          </button>
        </EndBar>
      );
    case "stopped":
      return (
        <>
          <Rule>{`connection lost ${clock(phase.lostAt)}`}</Rule>
          <EndBar
            tone="warn"
            lead={<Icon name="warn" tone="warn" />}
            title="Not connected"
            detail={`No more attempts.${runsOn(connection)}${unsent(session.pending.value)}`}
          >
            <button type="button" class="btn primary" onClick={() => session.retry()}>
              Reconnect now
            </button>
          </EndBar>
        </>
      );
    case "takenOver":
      return (
        <>
          <Rule>{`moved to another window ${clock(phase.when)}`}</Rule>
          <EndBar
            tone="acc"
            lead={<Icon name="phone" tone="acc" />}
            title="This session is being typed in elsewhere"
            detail={`Taken over ${clock(phase.when)}. The screen above is from that moment.`}
          >
            <button type="button" class="btn" onClick={() => session.retry()}>
              Watch read-only
            </button>
            <button type="button" class="btn primary" onClick={() => session.takeOver()}>
              Take it back
            </button>
          </EndBar>
        </>
      );
    case "refused":
      return connection.text ? <RefusedBar {...props} phase={phase} /> : null;
    case "ended":
      return <EndedBar {...props} phase={phase} />;
    case "idle":
    case "live":
    case "stalled":
      return null;
  }
}

function OpeningCard({ connection, open }: { connection: Connection; open: boolean }) {
  const { held, target } = connection;
  const title = held ? "Coming back to the shell on" : "Opening a shell on";
  const last = held ? "Finding the shell" : "Building and locking the sandbox, starting the shell";
  return (
    <div class="full">
      <div class="full-card stack stack-4">
        <div>
          <h2>
            {title} {target.tile}
          </h2>
          {!held && <p class="dim sm">network {target.net}</p>}
        </div>
        <div class="steps">
          <div class={open ? "step" : "step now"}>
            {open ? <Icon name="check" /> : <span class="spin" />}
            <span>Connecting to the service</span>
          </div>
          <div class={open ? "step now" : "step todo"}>
            {open ? <span class="spin" /> : <span class="dot hollow" />}
            <span>{last}</span>
          </div>
        </div>
      </div>
    </div>
  );
}

function RefusedCard(props: CardProps & { phase: At<"refused"> }) {
  const { session, connection, phase, onSignIn } = props;
  const { target } = connection;
  const words = refusalWords(phase.code, phase.message, target);
  return (
    <div class="full">
      <div class="full-card stack stack-4">
        <div class="row row-3">
          <Icon name={phase.code === "TERM_FORBIDDEN" ? "ban" : "warn"} tone={words.tone} />
          <h2>{words.title}</h2>
        </div>
        <p class="dim">{words.detail}</p>
        <div class="panel">
          <dl class="kv panel-b">
            <dt>Tile</dt>
            <dd class="mono">{target.tile}</dd>
            <dt>Network</dt>
            <dd class="mono">{target.net}</dd>
            <dt>Code</dt>
            <dd class="mono">{phase.code}</dd>
          </dl>
        </div>
        <div class="row wrap">
          <RemedyButton
            session={session}
            code={phase.code}
            said={phase.message}
            onSignIn={onSignIn}
          />
        </div>
      </div>
    </div>
  );
}

type CardProps = { session: Session; connection: Connection; onSignIn: () => void };

/** Instead of the text, where there is none yet. */
export function StateCard(props: CardProps) {
  const { phase } = props.connection;
  if (phase.at === "connecting") {
    return <OpeningCard connection={props.connection} open={phase.open} />;
  }
  return phase.at === "refused" ? <RefusedCard {...props} phase={phase} /> : null;
}
