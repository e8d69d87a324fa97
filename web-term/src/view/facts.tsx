// What policy decided for this session, in words.

import type { Net, SessionEnv } from "../core/message";
import { baseName, noticeWords } from "../core/words";
import { Icon, type IconName } from "./icons";

type Fact = { icon: IconName; label: string; value: string; attention: boolean; title: string };

function factsOf(env: SessionEnv): Fact[] {
  const clamped = (field: string) => env.clamped.some((clamp) => clamp.field === field);
  const gaps =
    env.gaps.length === 0 ? "" : ` · ${env.gaps.length} gap${env.gaps.length > 1 ? "s" : ""}`;
  return [
    {
      icon: "net",
      label: "net",
      value: env.net,
      attention: clamped("net"),
      title: "Network scope, fixed when a shell starts",
    },
    {
      icon: "layer",
      label: "layer",
      value: env.layer,
      attention: env.layer === "ephemeral",
      title: "Whether system changes are kept",
    },
    {
      icon: "base",
      label: "base",
      value: baseName(env.base) + (env.baseOutdated ? " · outdated" : ""),
      attention: env.baseOutdated,
      title: env.base,
    },
    {
      icon: "api",
      label: "API",
      value: env.api ? "on" : "off",
      attention: clamped("api"),
      title: "Whether the shell has a token of its tile",
    },
    {
      icon: "shield",
      label: "",
      value: env.tier + gaps,
      attention: env.gaps.length > 0,
      title: env.nesting ? "Nested mounts and namespaces work" : "No nested mounts and namespaces",
    },
  ];
}

/** The strip at the right of the header. */
export function FactStrip({ env }: { env: SessionEnv }) {
  return (
    <dl class="facts" aria-label="What policy decided for this session">
      {factsOf(env).map((fact) => (
        <div key={fact.icon} class={fact.attention ? "fact att" : "fact"} title={fact.title}>
          <Icon name={fact.icon} />
          <dt class={fact.label === "" ? "sr" : "lbl"}>
            {fact.label === "" ? "tier" : fact.label}
          </dt>
          <dd>
            <b>{fact.value}</b>
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** The same as one line, on a phone. */
export function FactLine({ env }: { env: SessionEnv }) {
  return (
    <p class="phone-facts">
      <span class="sr">Session policy:</span>
      {factsOf(env).map((fact, at) => (
        <span key={fact.icon} class={fact.attention ? "warn" : ""}>
          {at > 0 && <span class="sepd">· </span>}
          {fact.label === "" ? fact.value : `${fact.label} ${fact.value}`}
        </span>
      ))}
    </p>
  );
}

/** What is out of the ordinary, above the screen. */
export function PolicyNotice({ env, onDismiss }: { env: SessionEnv; onDismiss: () => void }) {
  const words = noticeWords(env);
  if (words === null) return null;
  return (
    <div class="note warn">
      <Icon name={words.icon} />
      <span class="grow">
        <b>{words.title}</b> {words.detail}
      </span>
      <button type="button" class="ib s" aria-label="Dismiss" onClick={onDismiss}>
        <Icon name="x" />
      </button>
    </div>
  );
}

const CHOICES = [
  { net: "none", words: "No network at all, not even DNS." },
  { net: "host", words: "Shares the host’s network. Administrators only." },
] as const satisfies { net: Net; words: string }[];

/** Which network a new shell gets. */
export function NetChoice({ value, onChange }: { value: Net; onChange: (net: Net) => void }) {
  return (
    <fieldset class="nets">
      <legend class="label">Network</legend>
      {CHOICES.map(({ net, words }) => (
        <label key={net} class="net">
          <input
            type="radio"
            name="net"
            class="check"
            value={net}
            checked={value === net}
            onChange={() => onChange(net)}
          />
          <b class="med">{net}</b>
          <small>{words}</small>
        </label>
      ))}
    </fieldset>
  );
}
