// The tiles of the workspace, as `GET /v1/tiles` lists them.

import { readJson } from "./fields";
import type { Parsed } from "./frame";

/** A tile that the person may see. */
export type Tile = { tile: string; name: string | null };

/** Parses the list. */
export function parseTiles(text: string): Parsed<Tile[]> {
  return readJson(text, (body) =>
    body.objects("tiles").map((item) => ({
      tile: item.text("tile"),
      name: item.isNull("name") ? null : item.text("name"),
    })),
  );
}

/** Who is signed in, as `GET /v1/auth/me` says it. */
export type Me = { user: string; admin: boolean };

/** Parses who is signed in. */
export function parseMe(text: string): Parsed<Me> {
  return readJson(text, (body) => ({
    user: body.text("user"),
    admin: ["owner", "admin"].includes(body.text("role")),
  }));
}

/** `apps/hello` → `apps/` and `hello`. */
export function splitTile(tile: string): { dir: string; leaf: string } {
  const at = tile.lastIndexOf("/") + 1;
  return { dir: tile.slice(0, at), leaf: tile.slice(at) };
}

/** What the address of the page points at, in its fragment: `#apps/hello` or `#apps/hello:ses_…`. */
export type Place = { tile: string; session: string | null };

export function parsePlace(fragment: string): Place | null {
  let text: string;
  try {
    text = decodeURIComponent(fragment.replace(/^#/, ""));
  } catch {
    return null;
  }
  const match = /^([^:]{1,4096})(?::(ses_[0-9A-Za-z-]{1,64}))?$/u.exec(text);
  if (!match?.[1]) return null;
  return { tile: match[1], session: match[2] ?? null };
}

export function formatPlace(place: Place): string {
  const tile = place.tile.split("/").map(encodeURIComponent).join("/");
  return place.session === null ? `#${tile}` : `#${tile}:${place.session}`;
}

/** Finds the code in what was typed or pasted: a login link, or the code alone. */
export function loginCode(typed: string): string | null {
  const text = typed.trim();
  const code = text.includes("#") ? text.slice(text.indexOf("#") + 1) : text;
  return /^[A-Za-z0-9_-]{8,128}$/.test(code) ? code : null;
}
