// One session on the wire: runs what the machine of `core/connection` decides.

import { computed, signal } from "@preact/signals";
import { fetchTiles, forgetSession, keepSession } from "./browser";
import {
  type Connection,
  type ConnectionEvent,
  type Effect,
  type Held,
  idle,
  step,
  type Target,
} from "./core/connection";
import { ACK_DELAY_MS, InputFlow, OutputFlow } from "./core/flow";
import { encodeFrame, parseFrame } from "./core/frame";
import {
  type ClientMessage,
  encodeMessage,
  PROTOCOL,
  parseMessage,
  type Ready,
  type ServerMessage,
  type SessionEnv,
} from "./core/message";
import { isReport } from "./core/report";
import { clock, exitWords, size as sizeWords } from "./core/words";
import type { Screen, Size } from "./view/terminal";

/** Resizes while the window is dragged are sent at most this often. */
const RESIZE_MS = 50;
/** How often the age of an unanswered key is looked at. */
const SILENCE_CHECK_MS = 500;
/** A session as the page shows it. */
export class Session {
  readonly #connection;
  readonly #env = signal<SessionEnv | null>(null);
  readonly #pending = signal(0);
  readonly #roundTrip = signal<number | null>(null);
  readonly #notice = signal<string | null>(null);
  readonly #screen: Screen;
  readonly #output = new OutputFlow();
  readonly #input = new InputFlow();
  #socket: WebSocket | null = null;
  #takeover = false;
  #ready: Ready | null = null;
  #gateShut = true;
  #wakeTimer: ReturnType<typeof setTimeout> | undefined;
  #ackTimer: ReturnType<typeof setTimeout> | undefined;
  #resizeTimer: ReturnType<typeof setTimeout> | undefined;
  #silenceTimer: ReturnType<typeof setInterval>;
  #sentSize: Size | null = null;

  constructor(target: Target, screen: Screen) {
    this.#connection = signal<Connection>(idle(target));
    this.#screen = screen;
    this.#silenceTimer = setInterval(() => {
      const since = this.#input.waitingSince;
      if (since !== null) this.#apply({ type: "silence", since });
    }, SILENCE_CHECK_MS);
  }

  readonly connection = computed(() => this.#connection.value);
  /** What policy decided; `null` before the first `ready`. */
  readonly env = computed(() => this.#env.value);
  /** Bytes typed and not yet taken by the service. */
  readonly pending = computed(() => this.#pending.value);
  /** Milliseconds from a key to its acknowledgement, as last seen. */
  readonly roundTrip = computed(() => this.#roundTrip.value);
  /** Something the person should know that changes no state. */
  readonly notice = computed(() => this.#notice.value);

  /** Opens a new shell; what is on the screen stays above it. */
  open(target: Target): void {
    const { phase, text } = this.#connection.value;
    if (text) this.#screen.separate(phase.at === "ended" ? this.#endWords() : "new shell");
    this.#input.restart();
    this.#env.value = null;
    this.#notice.value = null;
    this.#connection.value = { ...this.#connection.value, target };
    this.#apply({ type: "open" });
  }

  attach(held: Held): void {
    this.#apply({ type: "attach", held });
  }

  retry(): void {
    this.#apply({ type: "retry" });
  }

  stop(): void {
    this.#apply({ type: "stop" });
  }

  takeOver(): void {
    this.#apply({ type: "takeOver" });
  }

  wake(suspect: boolean): void {
    this.#apply({ type: "wake", suspect });
  }

  focus(): void {
    this.#screen.focus();
  }

  dismissNotice(): void {
    this.#notice.value = null;
  }

  /** Leaves the session to itself. */
  dispose(): void {
    this.#drop();
    clearTimeout(this.#wakeTimer);
    clearTimeout(this.#ackTimer);
    clearTimeout(this.#resizeTimer);
    clearInterval(this.#silenceTimer);
  }

  /** Keys, pastes and the terminal's own answers. */
  type(bytes: Uint8Array): void {
    const { phase, owner } = this.#connection.value;
    switch (phase.at) {
      case "ended":
        if (bytes.length === 1 && bytes[0] === 0x0d) this.open(this.#connection.value.target);
        return;
      case "idle":
      case "takenOver":
      case "refused":
        return;
      case "connecting":
      case "live":
      case "stalled":
      case "waiting":
      case "stopped":
        if (owner) this.#keep(bytes);
    }
  }

  resized(size: Size): void {
    if (this.#resizeTimer !== undefined) return;
    this.#sendSize(size);
    this.#resizeTimer = setTimeout(() => {
      this.#resizeTimer = undefined;
      this.#sendSize(this.#screen.size);
    }, RESIZE_MS);
  }

  #endWords(): string {
    const { phase } = this.#connection.value;
    return phase.at === "ended" ? `${exitWords(phase.exit).title}, ${clock(phase.when)}` : "";
  }

  #keep(bytes: Uint8Array): void {
    if (this.#gateShut && isReport(bytes)) return;
    if (!this.#input.push(bytes)) {
      this.#notice.value = `${sizeWords(bytes.length)} were not sent: the shell has not taken what was typed before.`;
      return;
    }
    this.#flush();
  }

  #apply(event: ConnectionEvent): void {
    const next = step(this.#connection.value, event, { now: Date.now(), spread: Math.random() });
    this.#connection.value = next.state;
    for (const effect of next.effects) this.#run(effect);
    const { phase, owner, text } = next.state;
    const attached = phase.at === "live" || phase.at === "stalled";
    this.#screen.setLive(attached && owner);
    if (text && !attached) this.#screen.hold();
  }

  #run(effect: Effect): void {
    switch (effect.do) {
      case "connect":
        this.#connect(effect.takeover);
        return;
      case "disconnect":
        this.#drop();
        return;
      case "hello":
        this.#hello();
        return;
      case "begin":
        this.#begin(effect.fresh);
        return;
      case "remember": {
        const { token } = effect.held;
        const { target } = this.#connection.value;
        const net = this.#ready?.env.net ?? target.net;
        if (token !== null) keepSession(target.tile, { session: effect.held.session, token, net });
        return;
      }
      case "forget":
        forgetSession(this.#connection.value.target.tile);
        return;
      case "probe":
        void fetchTiles().then((answer) => {
          this.#apply({ type: "probed", status: answer.ok ? 200 : answer.status });
        });
        return;
      case "wakeAt":
        clearTimeout(this.#wakeTimer);
        this.#wakeTimer = setTimeout(() => this.#apply({ type: "tick" }), effect.time - Date.now());
    }
  }

  #connect(takeover: boolean): void {
    this.#takeover = takeover;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws/term`, PROTOCOL);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    let wasOpen = false;
    const mine = (handle: () => void) => () => {
      if (this.#socket === socket) handle();
    };
    socket.onopen = mine(() => {
      wasOpen = true;
      this.#apply({ type: "opened" });
    });
    socket.onmessage = (event: MessageEvent<unknown>) => {
      if (this.#socket === socket) this.#receive(event.data);
    };
    socket.onclose = (event) => {
      if (this.#socket === socket) this.#apply({ type: "closed", code: event.code, wasOpen });
    };
  }

  #drop(): void {
    const socket = this.#socket;
    this.#socket = null;
    this.#gateShut = true;
    socket?.close(1000);
  }

  #send(message: ClientMessage): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(encodeMessage(message));
  }

  #hello(): void {
    const { held, target, shown } = this.#connection.value;
    const { cols, rows } = this.#screen.size;
    this.#sentSize = { cols, rows };
    const attach = held
      ? { session: held.session }
      : { open: { tile: target.tile, net: target.net, api: false, gpu: "none" } };
    const hello = {
      type: "hello",
      v: 1,
      attach,
      cols,
      rows,
      mode: "rw",
      takeover: this.#takeover,
    } as const;
    const seq = shown ? this.#output.received : 0;
    const iseq = shown ? this.#input.sent : 0;
    this.#send(held?.token ? { ...hello, resume: { token: held.token, seq, iseq } } : hello);
  }

  #begin(fresh: boolean): void {
    const ready = this.#ready;
    if (!ready) return;
    this.#env.value = ready.env;
    if (fresh) {
      this.#output.restart(ready.seq);
      this.#input.adopt(ready.iseq);
    } else {
      if (ready.seq > this.#output.received) {
        const lost = ready.seq - this.#output.received;
        this.#notice.value = `${sizeWords(lost)} of output were written while there was no connection, and are not kept any more.`;
        this.#output.restart(ready.seq);
      }
      if (!this.#input.resume(ready.iseq)) this.#input.adopt(ready.iseq);
    }
    if (!ready.owner) this.#input.restart();
    this.#screen.follow(ready.owner ? null : this.#screen.size);
    this.#gateShut = ready.replay !== "none";
    this.#sendSize(this.#screen.size);
    this.#flush();
  }

  #receive(data: unknown): void {
    this.#apply({ type: "heard" });
    if (typeof data === "string") {
      const message = parseMessage(data);
      if (message.ok) this.#control(message.value);
      else this.#apply({ type: "fault", why: message.why });
      return;
    }
    if (!(data instanceof ArrayBuffer)) return;
    const frame = parseFrame(new Uint8Array(data));
    if (!frame.ok) {
      this.#apply({ type: "fault", why: frame.why });
      return;
    }
    if (frame.value.type === "output") this.#show(frame.value.seq, frame.value.bytes);
    else this.#acknowledged(frame.value.seq);
  }

  #control(message: ServerMessage): void {
    if (message.type === "ready") this.#ready = message;
    this.#apply({ type: "message", message });
    switch (message.type) {
      case "replayEnd":
        this.#screen.write(new Uint8Array(), () => {
          this.#gateShut = false;
          this.#send({ type: "replayDone" });
          this.#flush();
        });
        return;
      case "size":
        if (!this.#connection.value.owner) this.#screen.follow(message);
        return;
      case "error":
        if (message.code === "TERM_TAKEN_OVER") this.#input.restart();
        if (!message.fatal) this.#notice.value = message.message;
        return;
      case "ready":
      case "clients":
      case "exit":
        return;
    }
  }

  #show(seq: number, bytes: Uint8Array): void {
    const fresh = this.#output.take(seq, bytes);
    if (fresh === null) {
      this.#apply({ type: "fault", why: "output with a hole in it" });
      return;
    }
    const end = this.#output.received;
    const socket = this.#socket;
    this.#screen.write(fresh, () => {
      if (this.#socket !== socket) return;
      this.#ack(this.#output.parsed(end, Date.now()));
    });
  }

  #ack(offset: number | null): void {
    if (offset !== null) this.#sendFrame(encodeFrame({ type: "ack", seq: offset }));
    clearTimeout(this.#ackTimer);
    if (!this.#output.owes) return;
    this.#ackTimer = setTimeout(() => this.#ack(this.#output.due(Date.now())), ACK_DELAY_MS);
  }

  #acknowledged(iseq: number): void {
    const now = Date.now();
    const since = this.#input.waitingSince;
    if (!this.#input.ack(iseq, now)) {
      this.#apply({ type: "fault", why: "an acknowledgement of what was never sent" });
      return;
    }
    if (since !== null) this.#roundTrip.value = now - since;
    this.#flush();
  }

  /** Sends what may be sent. */
  #flush(): void {
    const { phase, owner } = this.#connection.value;
    const open = (phase.at === "live" || phase.at === "stalled") && owner && !this.#gateShut;
    if (open) {
      for (const piece of this.#input.next(Date.now())) {
        this.#sendFrame(encodeFrame({ type: "input", ...piece }));
      }
    }
    this.#pending.value = this.#input.pending;
  }

  #sendFrame(frame: Uint8Array<ArrayBuffer>): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(frame);
  }

  #sendSize(size: Size): void {
    const { phase, owner } = this.#connection.value;
    if (!owner || (phase.at !== "live" && phase.at !== "stalled")) return;
    if (size.cols === this.#sentSize?.cols && size.rows === this.#sentSize.rows) return;
    this.#sentSize = { ...size };
    this.#send({ type: "resize", cols: size.cols, rows: size.rows });
  }
}
