/** What the client has on every platform. */

export type { Abortable, Events } from "./client.js";
export { decode, encode, type Packet } from "./codec.js";
export type { Connection, ConnectionEvents, Connector } from "./connector.js";
export * from "./constants.js";
export { Decoder } from "./decoder.js";
export {
  Banned,
  Busy,
  ConnectionLost,
  EncodeError,
  Ended,
  Kicked,
  LimitReached,
  LoginRefused,
  NoToken,
  NotAllowed,
  NotConnected,
  PresenceError,
  ProtocolError,
  RecipientDisconnected,
  RecipientOffline,
  type Refusal,
  Replaced,
  RequestError,
  RequestFailed,
  RequestTimeout,
  ServerFailed,
  SessionLimit,
  Uncertain,
  Unreachable,
  Unsupported,
} from "./errors.js";
export type { Status } from "./login.js";
export type { State } from "./machine.js";
export type { Change } from "./options.js";
export type {
  Connected,
  Delivered,
  DeviceState,
  Disconnected,
  Dropped,
  Goodbye,
  PresenceChanged,
  Receipt,
  RoomChanged,
  RoomState,
  UserState,
  WatchEnded,
} from "./pushes.js";
export type { TokenSource } from "./tokens.js";
export type { Value, ValueMap } from "./values.js";
export { compareIds } from "./watches.js";
export { WebSocketConnector } from "./websocket.js";
