// The connection to /v1/live: reads server-sent events, detects silence, and reconnects.
// It uses fetch, because EventSource hides the status of a refusal and takes no token.

const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 5000;
// A forgotten page whose token was withdrawn must not look like somebody who guesses tokens.
const REFUSED_FIRST_MS = 5000;
const REFUSED_MAX_MS = 300_000;
const TOKEN_CHECK_AFTER_MS = 2500;
const SILENCE_TIMEOUT_MS = 20_000; // the server sends a heartbeat every 15 s, and a sample every second

/** Parses events from text that arrives in pieces; `feed` returns the events completed by a piece. */
export class EventParser {
  #rest = "";

  feed(piece) {
    this.#rest += piece.replaceAll("\r", "");
    const end = this.#rest.lastIndexOf("\n\n");
    if (end < 0) return [];
    const complete = this.#rest.slice(0, end);
    this.#rest = this.#rest.slice(end + 2);
    return complete.split("\n\n").map(parseEvent).filter((event) => event !== null);
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  return data.length ? { name, data: data.join("\n") } : null;
}

/** A URL of this server, without the user name and password that the page's own may have. */
export function serverUrl(path) {
  const url = new URL(path, document.baseURI);
  url.username = url.password = "";
  return url;
}

let token = ""; // as entered by the operator; only in memory

/** fetch with the operator's token, if one was entered. */
export function authorizedFetch(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(serverUrl(path), { cache: "no-store", ...options, headers });
}

/**
 * Args: `onEvent(name, value)`; `onState(state, detail)`, where state is one of connecting, open, lost,
 * token, busy, and detail is the status of a refusal.
 */
export class LiveStream {
  #onEvent;
  #onState;
  #retryMs = RETRY_FIRST_MS;
  #refusals = 0; // in succession
  #wake = () => {};
  #abort = null;

  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  async run() {
    this.#onState("connecting");
    for (;;) {
      let delayMs = 0;
      try {
        delayMs = await this.#connect();
      } catch {
        this.#onState("lost");
      }
      // Randomised, so that the pages of a restarted server do not all return together.
      delayMs ||= this.#retryMs * (0.75 + Math.random() / 2);
      this.#retryMs = Math.min(RETRY_MAX_MS, this.#retryMs * 2);
      await new Promise((wake) => {
        this.#wake = wake;
        setTimeout(wake, delayMs);
      });
    }
  }

  /** Reconnect now: with this token, or, if it is empty, with what the browser prompts for. */
  useToken(text) {
    token = text.trim();
    this.#refusals = 0;
    this.#retryMs = RETRY_FIRST_MS;
    this.#abort?.abort();
    this.#wake();
  }

  /** Connect, and read until the connection ends; returns the ms until the next attempt, 0 for the default. */
  async #connect() {
    const abort = (this.#abort = new AbortController());
    // After a refusal the browser would prompt for a password at each attempt.
    const credentials = this.#refusals || token ? "omit" : "same-origin";
    let answered = false;
    const headers = { Accept: "text/event-stream" };
    const watchdog = setTimeout(() => abort.abort(), SILENCE_TIMEOUT_MS);
    const tokenCheck = setTimeout(async () => {
      // The browser prompts for a password: the operator may take any time to answer.
      if (!(await this.#needsToken()) || answered) return;
      clearTimeout(watchdog);
      this.#onState("token");
    }, TOKEN_CHECK_AFTER_MS);
    const response = await authorizedFetch("v1/live", { signal: abort.signal, credentials, headers }).finally(() => {
      answered = true;
      clearTimeout(watchdog);
      clearTimeout(tokenCheck);
    });
    const isRefused = response.status === 401 || response.status === 403;
    this.#refusals = isRefused ? this.#refusals + 1 : 0;
    if (!response.ok) {
      await response.body?.cancel();
      this.#onState(isRefused ? "token" : response.status === 503 ? "busy" : "lost", response.status);
      return Number(response.headers.get("Retry-After")) * 1000 || (isRefused ? Math.min(REFUSED_MAX_MS, REFUSED_FIRST_MS * 2 ** (this.#refusals - 1)) : 0);
    }
    this.#onState("open");
    await this.#read(response.body, abort);
    this.#onState("lost");
    return 0;
  }

  async #needsToken() {
    try {
      const response = await fetch(serverUrl("openapi.json"), { cache: "no-store", credentials: "omit" });
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
      const watchdog = setTimeout(() => abort.abort(), SILENCE_TIMEOUT_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(watchdog));
      if (done) return;
      for (const { name, data } of parser.feed(value)) {
        this.#retryMs = RETRY_FIRST_MS;
        try {
          this.#onEvent(name, JSON.parse(data));
        } catch (error) {
          console.error(name, error); // an event that cannot be shown must not end the stream
        }
      }
    }
  }
}
