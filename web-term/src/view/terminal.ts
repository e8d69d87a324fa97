// The screen. The only importer of xterm.js.

import { FitAddon } from "@xterm/addon-fit";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

export type Size = { cols: number; rows: number };

/** What the screen reports. */
export type ScreenEvents = {
  /** Typed, pasted, or answered by the terminal itself. */
  input: (bytes: Uint8Array) => void;
  resized: (size: Size) => void;
  titled: (title: string) => void;
  /** Ctrl+Shift+R. */
  reconnect: () => void;
  /** Whether Tab moves on to the next control instead of going to the shell. */
  tabLeaves: (leaves: boolean) => void;
};

const FONT = '"JetBrains Mono Variable"';
const ANSI = [
  "black",
  "red",
  "green",
  "yellow",
  "blue",
  "magenta",
  "cyan",
  "white",
  "brightBlack",
  "brightRed",
  "brightGreen",
  "brightYellow",
  "brightBlue",
  "brightMagenta",
  "brightCyan",
  "brightWhite",
] as const;

function themeFromTokens(): ITheme {
  const tokens = getComputedStyle(document.documentElement);
  const token = (name: string) => tokens.getPropertyValue(name).trim();
  const theme: ITheme = {
    background: token("--term-bg"),
    foreground: token("--term-fg"),
    cursor: token("--term-cursor"),
    cursorAccent: token("--term-bg"),
    selectionBackground: token("--term-select"),
    scrollbarSliderBackground: token("--hover"),
    scrollbarSliderHoverBackground: token("--press"),
    scrollbarSliderActiveBackground: token("--press"),
  };
  ANSI.forEach((name, at) => {
    theme[name] = token(`--a${at}`);
  });
  return theme;
}

function follow(event: MouseEvent, address: string): void {
  if (!(event.ctrlKey || event.metaKey) || !/^https?:/i.test(address)) return;
  window.open(address, "_blank", "noopener,noreferrer");
}

/** One terminal in one element. */
export class Screen {
  readonly #terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #events: ScreenEvents;
  readonly #host: HTMLElement;
  readonly #resize: ResizeObserver;
  #tabLeaves = false;
  #fitting = true;

  /** Makes a terminal in `host`, after its font is there to be measured. */
  static async open(host: HTMLElement, events: ScreenEvents): Promise<Screen> {
    await Promise.all([
      document.fonts.load(`13px ${FONT}`),
      document.fonts.load(`bold 13px ${FONT}`),
    ]).catch(() => undefined); // a fallback font does too
    return new Screen(host, events);
  }

  private constructor(host: HTMLElement, events: ScreenEvents) {
    this.#events = events;
    this.#host = host;
    const tokens = getComputedStyle(document.documentElement);
    this.#terminal = new Terminal({
      allowProposedApi: true, // for the width table of the grapheme addon
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      customGlyphs: true,
      fontFamily: tokens.getPropertyValue("--font-mono").trim(),
      fontSize: 13,
      fontWeight: 400,
      fontWeightBold: 700,
      lineHeight: 1.15,
      linkHandler: { activate: follow, allowNonHttpProtocols: false },
      minimumContrastRatio: 4.5,
      scrollback: 10_000,
      theme: themeFromTokens(),
    });
    this.#terminal.loadAddon(this.#fit);
    this.#terminal.loadAddon(new WebLinksAddon(follow));
    this.#terminal.open(host);
    this.#listen();
    this.#resize = new ResizeObserver(() => this.#settle());
    this.#resize.observe(host);
    this.#settle();
    void this.#loadGraphemes();
    void this.#loadWebgl();
  }

  get size(): Size {
    return { cols: this.#terminal.cols, rows: this.#terminal.rows };
  }

  /** Shows bytes; `parsed` is called when the terminal has taken them in. */
  write(bytes: Uint8Array, parsed: () => void): void {
    this.#terminal.write(bytes, parsed);
  }

  /**
   * Ends what a program left behind (alternate screen, modes, colours) and draws a line of our own;
   * the text above it stays.
   */
  separate(words: string): void {
    const leave = "\x1b[?1047l\x1b[!p\x1b[?1000;1002;1003;1004;1006;2004l\x1b[0m";
    this.#terminal.write(`${leave}\r\n\x1b[2m── ${words} ──\x1b[0m\r\n\r\n`);
  }

  /** Follows the window's size, as the writer does; or has the size that the writer gave it. */
  follow(size: Size | null): void {
    this.#fitting = size === null;
    if (size) this.#terminal.resize(size.cols, size.rows);
    // When what is shown beside the screen has been drawn anew.
    requestAnimationFrame(() => this.#settle());
  }

  /**
   * Keeps its size, whatever place is left for it: without a connection the program does not know
   * of a new one, and rows that are cut off would be lost.
   */
  hold(): void {
    this.#fitting = false;
  }

  #settle(): void {
    const host = this.#host;
    if (!this.#fitting) {
      const { cursorY } = this.#terminal.buffer.active;
      const cursorEnd = ((cursorY + 1) / this.#terminal.rows) * host.scrollHeight;
      host.scrollTop = cursorEnd > host.clientHeight ? host.scrollHeight : 0;
      return;
    }
    const size = this.#fit.proposeDimensions();
    if (!size || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return;
    const cols = Math.min(1000, Math.max(1, size.cols));
    const rows = Math.min(500, Math.max(1, size.rows));
    if (cols !== this.#terminal.cols || rows !== this.#terminal.rows) {
      this.#terminal.resize(cols, rows);
    }
  }

  /** Whether the cursor shows that keys are taken. */
  setLive(live: boolean): void {
    this.#terminal.options.cursorInactiveStyle = "outline";
    this.#terminal.options.cursorStyle = live ? "block" : "underline";
  }

  retheme(): void {
    this.#terminal.options.theme = themeFromTokens();
  }

  focus(): void {
    this.#terminal.focus();
  }

  dispose(): void {
    this.#resize.disconnect();
    this.#terminal.dispose();
  }

  #listen(): void {
    const encoder = new TextEncoder();
    this.#terminal.onData((text) => this.#events.input(encoder.encode(text)));
    this.#terminal.onBinary((text) =>
      this.#events.input(Uint8Array.from(text, (char) => char.charCodeAt(0) & 0xff)),
    );
    this.#terminal.onResize(({ cols, rows }) => this.#events.resized({ cols, rows }));
    this.#terminal.onTitleChange((title) => this.#events.titled(title));
    this.#terminal.attachCustomKeyEventHandler((event) => this.#key(event));
  }

  /** Returns whether the key goes to the shell. Those of the page are Ctrl+Shift and a letter. */
  #key(event: KeyboardEvent): boolean {
    if (event.key === "Tab" && this.#tabLeaves) return false;
    if (!event.ctrlKey || !event.shiftKey || event.altKey || event.metaKey) return true;
    const run = this.#command(event.code);
    if (run === null) return true;
    event.preventDefault();
    if (event.type === "keydown" && !event.repeat) run();
    return false;
  }

  #command(code: string): (() => void) | null {
    switch (code) {
      case "KeyC":
        return () => this.#copy();
      case "KeyR":
        return () => this.#events.reconnect();
      case "KeyM":
        return () => {
          this.#tabLeaves = !this.#tabLeaves;
          this.#events.tabLeaves(this.#tabLeaves);
        };
      default:
        return null;
    }
  }

  #copy(): void {
    const text = this.#terminal.getSelection();
    if (text === "") return;
    // Only pages over HTTPS or on the own machine have a clipboard to write to.
    navigator.clipboard?.writeText(text).catch(() => undefined);
  }

  async #loadGraphemes(): Promise<void> {
    const { UnicodeGraphemesAddon } = await import("@xterm/addon-unicode-graphemes");
    this.#terminal.loadAddon(new UnicodeGraphemesAddon());
  }

  /** Draws on the graphics card where there is one; else the DOM stays in use. */
  async #loadWebgl(): Promise<void> {
    try {
      const { WebglAddon } = await import("@xterm/addon-webgl");
      const webgl = new WebglAddon();
      webgl.onContextLoss(() => webgl.dispose());
      this.#terminal.loadAddon(webgl);
    } catch {
      // No WebGL2 here, or the context was refused.
    }
  }
}
