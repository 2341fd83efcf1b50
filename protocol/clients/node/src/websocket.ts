/** Connections over WebSocket, for browsers and every platform whose global `WebSocket` is like theirs. */

import type { Connection, ConnectionEvents, Connector } from "./connector.js";

const SUBPROTOCOL = "presence.v1"; // binary messages, which together are the stream of frames
const SCHEMES: readonly string[] = ["ws:", "wss:"];
const NORMAL_CLOSURE = 1000;
const MESSAGE_MAX_BYTES = 16_384; // 4 fewer than a server accepts: the stream may be cut anywhere

/** What this uses of a platform's WebSocket. */
interface Socket {
  binaryType: string;
  onopen: (() => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onclose: ((event: { readonly code: number; readonly reason: string }) => void) | null;
  send(bytes: Uint8Array): void;
  close(code?: number): void;
}

type SocketClass = new (url: string, subprotocol: string) => Socket;

function platform(): { readonly WebSocket?: SocketClass; readonly navigator?: { readonly onLine?: boolean } } {
  return globalThis as never;
}

/** What a client uses if it is given a `url`. */
export class WebSocketConnector implements Connector {
  private readonly url: string;

  /** @throws TypeError it is no URL of a WebSocket, or this platform has none (Node has one from version 22). */
  constructor(url: string | URL) {
    if (!platform().WebSocket) {
      throw new TypeError("this platform has no WebSocket");
    }
    const { protocol, hash, href } = new URL(url);
    if (!SCHEMES.includes(protocol) || hash) {
      throw new TypeError(`url must begin with ws: or wss: and have no fragment, unlike ${href}`);
    }
    this.url = href;
  }

  connect(events: ConnectionEvents): Connection {
    const { WebSocket } = platform() as { readonly WebSocket: SocketClass };
    const socket = new WebSocket(this.url, SUBPROTOCOL);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => events.opened();
    socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) {
        events.received(new Uint8Array(data));
      } else {
        socket.close(); // no server of this protocol sends text here
      }
    };
    socket.onclose = (event) => events.closed(reasonOf(event));
    return {
      write: (bytes) => {
        for (let start = 0; start < bytes.length; start += MESSAGE_MAX_BYTES) {
          socket.send(bytes.subarray(start, start + MESSAGE_MAX_BYTES));
        }
      },
      destroy: () => {
        socket.onopen = socket.onmessage = socket.onclose = null;
        socket.close();
      },
    };
  }
}

/** Returns why a connection closed: of a failed one browsers tell programs nothing but its code, 1006. */
function reasonOf({ code, reason }: { readonly code: number; readonly reason: string }): string {
  if (platform().navigator?.onLine === false) {
    return "this device is offline";
  }
  return code === NORMAL_CLOSURE ? reason || "the server closed it" : reason || `closed with code ${code}`;
}
