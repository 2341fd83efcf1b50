/** A client of a presence server for browsers, and the protocol below it. See README.md. */

export * from "../common.js";
export { type Options, PresenceClient } from "./client.js";
export { storedDevice } from "./stored-device.js";
