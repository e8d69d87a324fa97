// Line icons on a 16 px grid, and the mark.

import type { JSX } from "preact";

const SHAPES = {
  terminal: (
    <>
      <rect x="1.75" y="2.75" width="12.5" height="10.5" rx="2" />
      <path d="m4.75 6 2 2-2 2M8.5 10.25h2.75" />
    </>
  ),
  net: (
    <>
      <circle cx="8" cy="8" r="5.75" />
      <path d="M2.25 8h11.5M8 2.25c2 1.7 2.6 3.7 2.6 5.75S10 12 8 13.75C6 12 5.4 10 5.4 8S6 4 8 2.25z" />
    </>
  ),
  layer: (
    <>
      <path d="m8 2.2 6 3.1-6 3.1-6-3.1z" />
      <path d="m2 8.3 6 3.1 6-3.1M2 11.2l6 3.1 6-3.1" />
    </>
  ),
  base: (
    <>
      <ellipse cx="8" cy="4" rx="5.25" ry="2" />
      <path d="M2.75 4v8c0 1.1 2.35 2 5.25 2s5.25-.9 5.25-2V4M2.75 8c0 1.1 2.35 2 5.25 2s5.25-.9 5.25-2" />
    </>
  ),
  api: (
    <>
      <circle cx="5.2" cy="10.8" r="2.9" />
      <path d="m7.3 8.7 5.9-5.9M10.8 5.2l1.9 1.9" />
    </>
  ),
  shield: (
    <>
      <path d="M8 1.9 3 3.7v3.8c0 3.2 2 5.5 5 6.6 3-1.1 5-3.4 5-6.6V3.7z" />
    </>
  ),
  check: (
    <>
      <path d="m3.5 8.5 3 3 6-7" />
    </>
  ),
  x: (
    <>
      <path d="m4 4 8 8M12 4l-8 8" />
    </>
  ),
  warn: (
    <>
      <path d="M8 2.4 14.2 13H1.8z" />
      <path d="M8 6.5v3M8 11.2h.01" />
    </>
  ),
  ban: (
    <>
      <circle cx="8" cy="8" r="5.75" />
      <path d="m4 4 8 8" />
    </>
  ),
  clock: (
    <>
      <circle cx="8" cy="8" r="5.75" />
      <path d="M8 4.8V8l2.2 1.5" />
    </>
  ),
  eye: (
    <>
      <path d="M1.5 8S4 3.7 8 3.7 14.5 8 14.5 8 12 12.3 8 12.3 1.5 8 1.5 8z" />
      <circle cx="8" cy="8" r="1.9" />
    </>
  ),
  phone: (
    <>
      <rect x="4.25" y="1.75" width="7.5" height="12.5" rx="1.8" />
      <path d="M7.2 12h1.6" />
    </>
  ),
  menu: (
    <>
      <path d="M2.5 4.5h11M2.5 8h11M2.5 11.5h11" />
    </>
  ),
  lock: (
    <>
      <rect x="3.25" y="7" width="9.5" height="6.5" rx="1.5" />
      <path d="M5.2 7V5.2a2.8 2.8 0 0 1 5.6 0V7" />
    </>
  ),
  info: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 7.4v3.4M8 5.2h.01" />
    </>
  ),
  refresh: (
    <>
      <path d="M13 8a5 5 0 0 1-9 3M3 8a5 5 0 0 1 9-3" />
      <path d="M12.3 2.2V5H9.5M3.7 13.8V11h2.8" />
    </>
  ),
} satisfies { [name: string]: JSX.Element };

export type IconName = keyof typeof SHAPES;

/** A picture without a meaning of its own: a word stands beside it. */
export function Icon({ name, tone = "" }: { name: IconName; tone?: string }) {
  return (
    <svg class={`i ${tone}`} viewBox="0 0 16 16" aria-hidden="true">
      {SHAPES[name]}
    </svg>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 22 22" aria-hidden="true">
      <path class="mark-a" d="M1 20V11a10 10 0 0 1 20 0v9a1 1 0 0 1-1 1H2a1 1 0 0 1-1-1z" />
      <path class="mark-b" d="M5.5 21v-8.5a5.5 5.5 0 0 1 11 0V21z" />
      <rect class="mark-a" x="8" y="16.2" width="6" height="2" rx=".6" />
    </svg>
  );
}
