package presence.client;

/** Randomness as an argument, so that tests choose it. */
interface Chance {
    /** Returns a number of [0, 1). */
    double next();
}
