// The connection to /v1/live: reads server-sent events, notices silence, and comes back by itself.
// With fetch instead of EventSource, since that hides the status of a refusal and takes no token.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const DOUBT_MS = 2500;
const SILENCE_MS = 20_000; // the server sends a heartbeat each 15 s, and a sample each second

/** Cuts a text that comes in pieces into events; `take` returns those that are complete. */
export class EventParser {
  #rest = "";

  take(piece) {
    this.#rest += piece.replaceAll("\r", "");
    const end = this.#rest.lastIndexOf("\n\n");
    if (end < 0) return [];
    const complete = this.#rest.slice(0, end);
    this.#rest = this.#rest.slice(end + 2);
    return complete.split("\n\n").map(eventOf).filter((event) => event !== null);
  }
}

function eventOf(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  return data.length ? { name, data: data.join("\n") } : null;
}

/** An address of this server, without name and password that may stand in the page's own. */
export function address(path) {
  const url = new URL(path, document.baseURI);
  url.username = url.password = url.hash = url.search = "";
  return url;
}

let token = ""; // what was typed in; kept in memory only

/** fetch with the token that was typed in, if any. */
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(address(path), { cache: "no-store", ...options, headers });
}

/**
 * Args: `onEvent(name, value)`; `onState(state, detail)`, where state is one of connecting, open, lost,
 * token, crowded, and detail says why.
 */
export class LiveStream {
  #onEvent;
  #onState;
  #wait = FIRST_WAIT_MS;
  #refused = false;
  #wake = () => {};
  #abort = null;

  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  async run() {
    this.#onState("connecting");
    for (;;) {
      let wait = 0;
      try {
        wait = await this.#once();
      } catch {
        this.#onState("lost");
      }
      // Spread, so that all pages of a server that was restarted do not come at once.
      wait ||= this.#wait * (0.75 + Math.random() / 2);
      this.#wait = Math.min(LONGEST_WAIT_MS, this.#wait * 2);
      await new Promise((wake) => {
        this.#wake = wake;
        setTimeout(wake, wait);
      });
    }
  }

  /** Try again now: with this token, or, if there is none, as the browser asks for it. */
  useToken(text) {
    token = text.trim();
    this.#refused = false;
    this.#wait = FIRST_WAIT_MS;
    this.#abort?.abort();
    this.#wake();
  }

  /** One connection, to its end; returns how long to wait, ms, or 0 for the usual time. */
  async #once() {
    const abort = (this.#abort = new AbortController());
    // After a refusal the browser itself would ask for a password at each try.
    const credentials = this.#refused || token ? "omit" : "same-origin";
    let answered = false;
    const headers = { Accept: "text/event-stream" };
    const watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    const doubt = setTimeout(async () => {
      // The browser asks for a password, and its user has not answered: that may take as long as it takes.
      if (!(await this.#needsToken()) || answered) return;
      clearTimeout(watchdog);
      this.#onState("token");
    }, DOUBT_MS);
    const response = await ask("v1/live", { signal: abort.signal, credentials, headers }).finally(() => {
      answered = true;
      clearTimeout(watchdog);
      clearTimeout(doubt);
    });
    this.#refused = response.status === 401 || response.status === 403;
    if (!response.ok) {
      await response.body?.cancel();
      this.#onState(this.#refused ? "token" : response.status === 503 ? "crowded" : "lost", response.status);
      return Number(response.headers.get("Retry-After")) * 1000 || (this.#refused ? LONGEST_WAIT_MS : 0);
    }
    this.#onState("open");
    await this.#read(response.body, abort);
    this.#onState("lost");
    return 0;
  }

  async #needsToken() {
    try {
      const response = await fetch(address("openapi.json"), { cache: "no-store", credentials: "omit" });
      await response.body?.cancel();
      return response.status === 401;
    } catch {
      return false;
    }
  }

  async #read(body, abort) {
    const parser = new EventParser();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(watchdog));
      if (done) return;
      for (const { name, data } of parser.take(value)) {
        this.#wait = FIRST_WAIT_MS;
        try {
          this.#onEvent(name, JSON.parse(data));
        } catch (error) {
          console.error(name, error); // what cannot be shown must not end what can
        }
      }
    }
  }
}
