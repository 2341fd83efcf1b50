/** The clock and the event loop of Node. */

import { type Environment, TIMERS } from "../environment.js";

export const NODE: Environment = {
  ...TIMERS,
  afterInput: (callback) => {
    const immediate = setImmediate(callback);
    return () => clearImmediate(immediate);
  },
  throwLater: (error) => {
    setImmediate(() => {
      throw error;
    });
  },
  onWake: () => () => undefined, // Node does not say
};
