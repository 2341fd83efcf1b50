/** A client of a presence server for Node, and the protocol below it. See README.md. */

export * from "./common.js";
export { type Options, PresenceClient } from "./node/client.js";
export { type Endpoint, TcpConnector } from "./node/tcp.js";
