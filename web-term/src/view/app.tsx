// The workspace: tiles at the side, one of them open.

import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { fetchMe, fetchTiles, postLogout, recallSession } from "../browser";
import type { Net } from "../core/message";
import { formatPlace, type Me, type Place, parsePlace, splitTile, type Tile } from "../core/tiles";
import { chooseTheme, THEMES, type ThemeChoice, themeChoice } from "../theme";
import { Mark } from "./icons";
import { Pane } from "./pane";

type Listing =
  | { at: "loading" }
  | { at: "listed"; me: Me; tiles: Tile[] }
  | { at: "failed"; status: number | null };

const THEME_WORDS: { [T in ThemeChoice]: string } = {
  system: "Theme: system",
  dark: "Theme: dark",
  light: "Theme: light",
  contrast: "Theme: high contrast",
};

function signIn(): void {
  location.assign("/login");
}

async function list(listing: Signal<Listing>, net: Signal<Net>): Promise<void> {
  const [me, tiles] = await Promise.all([fetchMe(), fetchTiles()]);
  if (me.ok && tiles.ok) {
    // What most shells of theirs need; the card shows it before a shell opens.
    net.value = me.value.admin ? "host" : "none";
    listing.value = { at: "listed", me: me.value, tiles: tiles.value };
    return;
  }
  const failed = me.ok ? tiles : me;
  const status = failed.ok ? null : failed.status;
  if (status === 401) location.replace("/login");
  else listing.value = { at: "failed", status };
}

async function signOut(): Promise<void> {
  await postLogout();
  location.replace("/login");
}

function ThemeChooser() {
  return (
    <select
      class="input select"
      aria-label="Theme"
      value={themeChoice.value}
      onChange={(event) => {
        const chosen = THEMES.find((name) => name === event.currentTarget.value);
        if (chosen) chooseTheme(chosen);
      }}
    >
      {THEMES.map((name) => (
        <option key={name} value={name}>
          {THEME_WORDS[name]}
        </option>
      ))}
    </select>
  );
}

function Account({ me }: { me: Me }) {
  return (
    <div class="row account">
      <span class="ava" aria-hidden="true">
        {me.user.slice(0, 2).toUpperCase()}
      </span>
      <span class="trunc grow sm">{me.user}</span>
      <button type="button" class="btn quiet" onClick={() => void signOut()}>
        Sign out
      </button>
    </div>
  );
}

function TileLink({ tile, current }: { tile: Tile; current: boolean }) {
  const { dir, leaf } = splitTile(tile.tile);
  const running = recallSession(tile.tile) !== null;
  return (
    <li>
      <a
        class="tile"
        href={formatPlace({ tile: tile.tile, session: null })}
        aria-current={current ? "true" : undefined}
        title={tile.name === null ? tile.tile : `${tile.tile} · ${tile.name}`}
      >
        <span class={running ? "dot ok" : "dot hollow"} />
        {running && <span class="sr">Session in this tab:</span>}
        <span class="trunc">
          <span class="dir">{dir}</span>
          {leaf}
        </span>
      </a>
    </li>
  );
}

function Side({ listing, place }: { listing: Listing; place: Place | null }) {
  return (
    <aside class="side" aria-label="Workspace">
      <div class="side-head">
        <Mark />
        <span class="ws trunc grow">Casemate</span>
      </div>
      <nav class="side-scroll" aria-label="Tiles">
        <div class="side-sec">
          <span class="over">Tiles</span>
        </div>
        {listing.at === "listed" && (
          <ul>
            {listing.tiles.map((tile) => (
              <TileLink key={tile.tile} tile={tile} current={tile.tile === place?.tile} />
            ))}
          </ul>
        )}
      </nav>
      <div class="side-foot wrap">
        {listing.at === "listed" && <Account me={listing.me} />}
        <ThemeChooser />
      </div>
    </aside>
  );
}

function Message({
  title,
  detail,
  children,
}: {
  title: string;
  detail: string;
  children?: ComponentChildren;
}) {
  return (
    <main class="main" id="main" tabIndex={-1}>
      <div class="full">
        <div class="full-card stack stack-4" role="status">
          <div>
            <h2>{title}</h2>
            <p class="dim sm">{detail}</p>
          </div>
          {children}
        </div>
      </div>
    </main>
  );
}

function NoPane({ listing, onRetry }: { listing: Listing; onRetry: () => void }) {
  switch (listing.at) {
    case "loading":
      return <Message title="Opening the workspace" detail="Asking for your tiles." />;
    case "failed":
      return (
        <Message
          title={
            listing.status === null
              ? "The service can’t be reached"
              : "Something went wrong on our side"
          }
          detail={
            listing.status === null
              ? "Nothing was lost: shells keep running without a viewer."
              : `The service answered with ${listing.status}. Its log says why.`
          }
        >
          <div class="row">
            <button type="button" class="btn primary" onClick={onRetry}>
              Try again
            </button>
          </div>
        </Message>
      );
    case "listed":
      return (
        <Message
          title="No tile to open"
          detail="There is no tile in this workspace that you may see. An administrator can grant one."
        />
      );
  }
}

/** `/`: the whole page after signing in. */
export function App() {
  const listing = useSignal<Listing>({ at: "loading" });
  const place = useSignal<Place | null>(parsePlace(location.hash));
  const net = useSignal<Net>("none");

  useEffect(() => {
    void list(listing, net);
    const moved = () => {
      place.value = parsePlace(location.hash);
      document.body.dataset["side"] = "";
    };
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);

  const first = listing.value.at === "listed" ? listing.value.tiles[0] : undefined;
  const shown = place.value ?? (first ? { tile: first.tile, session: null } : null);
  const menu = () => {
    document.body.dataset["side"] = document.body.dataset["side"] === "open" ? "" : "open";
  };
  return (
    <>
      <button type="button" class="skip" onClick={skip}>
        Skip to content
      </button>
      <div class="app">
        <Side listing={listing.value} place={shown} />
        {shown && listing.value.at === "listed" ? (
          <Pane
            key={shown.tile}
            tile={shown.tile}
            session={shown.session}
            net={net}
            onMenu={menu}
            onSignIn={signIn}
          />
        ) : (
          <NoPane listing={listing.value} onRetry={() => void list(listing, net)} />
        )}
      </div>
    </>
  );
}

function skip(): void {
  document.getElementById("main")?.focus();
}
