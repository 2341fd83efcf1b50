/** Listeners of events by name, as of Node's EventEmitter, for every platform. */

type Callback<Event> = (event: Event) => void;

interface Entry {
  readonly callback: Callback<never>;
  readonly once: boolean;
}

export class Listeners<Events> {
  private readonly entries = new Map<keyof Events, readonly Entry[]>(); // in the order added

  /** Adds a listener; added twice it is called twice. */
  add<Name extends keyof Events>(name: Name, callback: Callback<Events[Name]>, once = false): void {
    if (typeof callback !== "function") {
      throw new TypeError("a listener must be a function");
    }
    this.entries.set(name, [...(this.entries.get(name) ?? []), { callback, once }]);
  }

  /** Removes a listener, the one added last if it was added more than once. */
  remove<Name extends keyof Events>(name: Name, callback: Callback<Events[Name]>): void {
    const entries = this.entries.get(name) ?? [];
    const index = entries.map((entry) => entry.callback).lastIndexOf(callback);
    this.entries.set(name, entries.filter((_, place) => place !== index));
  }

  /** Calls the listeners that there are now; `failed` receives what one throws, and the others are called too. */
  call<Name extends keyof Events>(name: Name, event: Events[Name], failed: (error: unknown) => void): void {
    for (const entry of this.entries.get(name) ?? []) {
      if (entry.once) {
        this.entries.set(name, (this.entries.get(name) ?? []).filter((each) => each !== entry));
      }
      try {
        (entry.callback as Callback<Events[Name]>)(event);
      } catch (error) {
        failed(error);
      }
    }
  }
}
