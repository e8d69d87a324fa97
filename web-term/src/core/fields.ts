// Reads the fields of a JSON value from outside. Whatever does not fit ends the whole parse.

import type { Parsed } from "./frame";

class Malformed extends Error {}

/** A JSON object of which each field is asked for by name and kind. */
export class Fields {
  readonly #value: Record<string, unknown>;
  readonly #path: string;

  constructor(value: unknown, path: string) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new Malformed(`${path} is not an object`);
    }
    this.#value = value as Record<string, unknown>;
    this.#path = path;
  }

  #wrong(name: string, wanted: string): Malformed {
    return new Malformed(`${this.#path}.${name} is not ${wanted}`);
  }

  isNull(name: string): boolean {
    return this.#value[name] === null || this.#value[name] === undefined;
  }

  text(name: string): string {
    const value = this.#value[name];
    if (typeof value !== "string") throw this.#wrong(name, "a text");
    return value;
  }

  flag(name: string): boolean {
    const value = this.#value[name];
    if (typeof value !== "boolean") throw this.#wrong(name, "true or false");
    return value;
  }

  /** A whole number from 0 to 2^53 - 1. */
  count(name: string): number {
    const value = this.#value[name];
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
      throw this.#wrong(name, "a count");
    }
    return value;
  }

  oneOf<const T extends readonly string[]>(name: string, words: T): T[number] {
    const value = this.text(name);
    if (!words.includes(value)) throw this.#wrong(name, `one of ${words.join(", ")}`);
    return value;
  }

  object(name: string): Fields {
    return new Fields(this.#value[name], `${this.#path}.${name}`);
  }

  list(name: string): unknown[] {
    const value = this.#value[name];
    if (!Array.isArray(value)) throw this.#wrong(name, "a list");
    return value;
  }

  texts(name: string): string[] {
    return this.list(name).map((item) => {
      if (typeof item !== "string") throw this.#wrong(name, "a list of texts");
      return item;
    });
  }

  objects(name: string): Fields[] {
    return this.list(name).map((item, at) => new Fields(item, `${this.#path}.${name}[${at}]`));
  }
}

/** Runs a reader over a JSON value and turns what does not fit into a refusal. */
export function readFields<T>(value: unknown, read: (fields: Fields) => T): Parsed<T> {
  try {
    return { ok: true, value: read(new Fields(value, "message")) };
  } catch (error) {
    if (error instanceof Malformed) return { ok: false, why: error.message };
    throw error;
  }
}

/** The same over JSON text. */
export function readJson<T>(text: string, read: (fields: Fields) => T): Parsed<T> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { ok: false, why: "message is not JSON" };
  }
  return readFields(value, read);
}
