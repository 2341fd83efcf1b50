/** A client of the presence server, and the protocol below it. README.md says how to use both. */

export { type Events, type Options, PresenceClient, type Unwatched } from "./client.js";
export { decode, encode, type Packet } from "./codec.js";
export * from "./constants.js";
export { Decoder } from "./decoder.js";
export * from "./errors.js";
export type { Identity, State, Status } from "./machine.js";
export type { Connected, Delivered, Disconnected, Goodbye, PresenceChanged, UserState } from "./pushes.js";
export type { Value, ValueMap } from "./values.js";
export { compareIds } from "./watches.js";
