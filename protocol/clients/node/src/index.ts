/** A client of a presence server, and the protocol below it. See README.md. */

export { type Events, type Options, PresenceClient } from "./client.js";
export { decode, encode, type Packet } from "./codec.js";
export * from "./constants.js";
export { Decoder } from "./decoder.js";
export * from "./errors.js";
export type { Change, Identity, Status } from "./login.js";
export type { State } from "./machine.js";
export type {
  Connected,
  Delivered,
  DeviceState,
  Disconnected,
  Goodbye,
  PresenceChanged,
  UserState,
  WatchEnded,
} from "./pushes.js";
export type { TokenSource } from "./tokens.js";
export type { Value, ValueMap } from "./values.js";
export { compareIds } from "./watches.js";
