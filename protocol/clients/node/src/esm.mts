/**
 * What `import` gets: the same modules as `require`, so that in one process there is one class of each name and
 * `instanceof` holds, whichever way a program and its libraries load them.
 */

export * from "./index.js";
