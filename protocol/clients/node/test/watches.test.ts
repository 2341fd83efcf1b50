/** The watched users and the comparison of their states. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  compareIds,
  encode,
  FRAME_LIMIT_BYTES,
  Kind,
  type PresenceChanged,
  type UserState,
} from "../src/index.js";
import { batches, differs, isNewer, WatchedUsers } from "../src/watches.js";

function state(status: string, id: string | null, lastSeenMs: number | null = null): UserState {
  return { status, sinceMs: null, lastSeenMs, id, meta: {}, reason: null, devices: null };
}

function watchedUsers(states: Record<string, UserState>): WatchedUsers {
  const users = new WatchedUsers();
  users.requestSent(Object.keys(states));
  users.applySnapshot(new Map(Object.entries(states)));
  return users;
}

function push(uid: string, next: UserState): PresenceChanged {
  return { type: "presence", uid, state: next, reason: "login" };
}

test("ids are compared by their numbers", () => {
  const rising = "9-0 10-0 10-2 10-10 1795229928114-0 9007199254740993-0 9007199254740993-1".split(" ");
  for (let index = 1; index < rising.length; index += 1) {
    assert.equal(compareIds(rising[index - 1] as string, rising[index] as string), -1);
    assert.equal(compareIds(rising[index] as string, rising[index - 1] as string), 1);
  }
  assert.equal(compareIds("10-2", "10-2"), 0);
});

test("a change is applied only if its id is higher", () => {
  const watches = watchedUsers({ bob: state("online", "10-0") });
  const applied = ["9-0", "10-0", "11-0", "11-0", "10-5"].map((id) =>
    watches.applyChange(push("bob", state("away", id))),
  );
  assert.deepEqual(applied, [false, false, true, false, false]);
  assert.equal(watches.states().get("bob")?.id, "11-0");
});

test("a change of an unwatched user is dropped", () => {
  const watches = watchedUsers({ bob: state("online", "10-0") });
  watches.remove(["bob"]);
  assert.equal(watches.applyChange(push("bob", state("offline", "11-0", 5))), false);
  assert.equal(watches.states().size, 0);
});

test("a change that comes before a watch is refused does not make it a watch", () => {
  const watches = new WatchedUsers();
  const request = watches.requestSent(["bob"]); // and an earlier watch was not yet removed by the server
  watches.applyChange(push("bob", state("online", "10-0")));
  assert.deepEqual(watches.requestFailed(request, true), ["bob"]);
  assert.equal(watches.states().size, 0);
});

test("a user whose change comes before a watch is granted may be added", () => {
  const watches = new WatchedUsers();
  watches.requestSent(["bob"]);
  watches.applyChange(push("bob", state("online", "10-0")));
  assert.deepEqual(watches.add(["bob"]), ["bob"]);
  assert.equal(watches.state("bob")?.status, "online");
});

test("the first snapshot reports no change", () => {
  const watches = new WatchedUsers();
  watches.requestSent(["bob"]);
  assert.deepEqual(watches.applySnapshot(new Map([["bob", state("online", "10-0")]])), []);
});

test("a later snapshot reports each missed change once", () => {
  const watches = watchedUsers({
    ann: state("online", "10-0"),
    bob: state("online", "11-0"),
    eve: state("away", "12-0"),
  });
  const snapshot = new Map([
    ["ann", state("offline", null, 20)],
    ["bob", state("online", "11-0")],
    ["eve", state("online", "13-0")],
  ]);
  assert.deepEqual(
    watches.applySnapshot(snapshot).map(({ uid, state: { status }, reason }) => [uid, status, reason]),
    [
      ["ann", "offline", "meanwhile"],
      ["eve", "online", "meanwhile"],
    ],
  );
  assert.deepEqual(watches.applySnapshot(snapshot), []);
});

test("an older snapshot reports no change", () => {
  const watches = watchedUsers({ bob: state("online", "11-0") });
  assert.deepEqual(watches.applySnapshot(new Map([["bob", state("away", "10-0")]])), []);
  assert.equal(watches.states().get("bob")?.status, "online");
});

test("states without an id are compared by what they show", () => {
  const known = state("offline", "11-0", 20);
  assert.equal(differs(state("offline", null, 20), known), false);
  assert.equal(differs(state("offline", null, 30), known), true);
  assert.equal(differs(state("online", "12-0"), state("offline", null, 20)), true);
  assert.equal(differs({ ...state("offline", null, 20), meta: { app: "2" } }, known), true);
  assert.equal(isNewer(state("offline", "12-0", 20), state("offline", null, 20)), true);
});

test("an id in a later snapshot is kept, and is no change", () => {
  const watches = watchedUsers({ bob: state("offline", null, 20) });
  assert.deepEqual(watches.applySnapshot(new Map([["bob", state("offline", "11-0", 20)]])), []);
  assert.equal(watches.applyChange(push("bob", state("offline", "11-0", 20))), false);
});

test("the state of a user unwatched in the meantime is dropped", () => {
  const watches = new WatchedUsers();
  watches.requestSent(["bob"]);
  watches.remove();
  watches.applySnapshot(new Map([["bob", state("online", "10-0")]]));
  assert.equal(watches.states().size, 0);
});

test("a failed request keeps users of an earlier request that is pending", () => {
  const watches = new WatchedUsers();
  const first = watches.requestSent(["bob"]);
  const second = watches.requestSent(["bob"]);
  assert.deepEqual(watches.requestFailed(second, true), []);
  assert.deepEqual(watches.requestFailed(first, true), ["bob"]);
});

test("a failed request keeps users watched before or by a later request", () => {
  const watches = watchedUsers({ ann: state("online", "10-0") });
  const request = watches.requestSent(["ann", "bob", "eve"]);
  watches.requestSent(["eve"]);
  watches.requestFailed(request, true);
  assert.deepEqual(
    ["ann", "bob", "eve"].map((uid) => watches.has(uid)),
    [true, false, true],
  );
});

test("batches fit into a frame each, and contain every user", () => {
  const long = Array.from({ length: 700 }, (_, index) => `${index}`.padStart(64, "é"));
  const short = Array.from({ length: 1200 }, (_, index) => `u${index}`);
  for (const uids of [long, short, []]) {
    const result = batches(uids);
    assert.deepEqual(result.flat(), uids);
    result.forEach((list) => encode(Kind.WATCH, 2 ** 53 - 1, { uids: list }, FRAME_LIMIT_BYTES));
  }
  assert.equal(batches(short).length, 3);
});

// The roster

function reasons(changes: readonly PresenceChanged[]): string[][] {
  return changes.map(({ uid, state: { status }, reason }) => [uid, status, reason]);
}

function added(uid: string, id: string): PresenceChanged {
  return { type: "presence", uid, state: state("online", id), reason: "watched" };
}

function removed(uid: string): PresenceChanged {
  return { type: "presence", uid, state: state("removed", null), reason: "removed" };
}

/** The program has named ann; bob is in the roster. */
function withRoster(): WatchedUsers {
  const watches = watchedUsers({ ann: state("online", "1-0") });
  const states = new Map([["bob", state("online", "1-0")]]);
  assert.deepEqual(watches.applyRoster(watches.rosterRequested(), states, false), []);
  return watches;
}

function uids(watches: WatchedUsers): string[] {
  return [...watches.states().keys()];
}

test("the next answer is the roster: who is not in it is gone, and who is new is a change", () => {
  const watches = withRoster();
  const states = new Map([
    ["kim", state("away", "2-0")],
    ["ann", state("away", "3-0")],
  ]);
  assert.deepEqual(reasons(watches.applyRoster(watches.rosterRequested(), states, true)), [
    ["bob", "removed", "removed"],
    ["kim", "away", "watched"],
    ["ann", "away", "meanwhile"],
  ]);
  assert.deepEqual(uids(watches), ["ann", "kim"]);
  assert.deepEqual(reasons(watches.applyRoster(watches.rosterRequested(), new Map(), true)), [
    ["kim", "removed", "removed"],
  ]);
});

test("users are added and removed, and those whom the program has named stay", () => {
  const watches = withRoster();
  const applied = [added("kim", "2-0"), removed("bob"), removed("ann"), removed("bob")].map((change) =>
    watches.applyChange(change),
  );
  assert.deepEqual(applied, [true, true, false, false]);
  assert.deepEqual(uids(watches), ["ann", "kim"]);
});

test("a listed user whom the program names is named to the server, and stays", () => {
  const watches = withRoster();
  assert.deepEqual(watches.add(["ann", "bob"]), ["bob"]);
  assert.equal(watches.applyChange(removed("bob")), false);
  const granted = withRoster();
  granted.requestSent(["bob"]);
  granted.applySnapshot(new Map([["bob", state("online", "1-0")]]));
  assert.equal(granted.applyChange(removed("bob")), false);
});

test("a call that names a user waits on when the roster loses them", () => {
  const watches = withRoster();
  watches.requestSent(["bob"]);
  const isSince = watches.watchedSince(["bob"]);
  assert.equal(watches.applyChange(removed("bob")), true);
  assert.deepEqual(uids(watches), ["ann"]);
  assert.ok(isSince("bob"));
  assert.deepEqual(watches.applySnapshot(new Map([["bob", state("online", "1-0")]])), []);
  assert.equal(watches.applyChange(removed("bob")), false, "now they are named");
});

test("nobody is added without a roster, nor before the server has read an unwatch", () => {
  assert.equal(watchedUsers({}).applyChange(added("kim", "2-0")), false);
  const watches = withRoster();
  const answered = watches.removeBy(["bob"]);
  assert.equal(watches.applyChange(added("bob", "2-0")), false);
  answered();
  assert.equal(watches.applyChange(added("bob", "3-0")), true);
  watches.removeBy(undefined)();
  assert.equal(watches.applyChange(added("bob", "4-0")), false);
});

test("who is unwatched before the answer is not in it", () => {
  const watches = withRoster();
  const states = new Map([["bob", state("online", "1-0")]]);
  const first = watches.rosterRequested();
  watches.remove(["bob"]);
  assert.deepEqual(watches.applyRoster(first, states, true), []);
  const second = watches.rosterRequested();
  watches.remove();
  assert.deepEqual(watches.applyRoster(second, states, true), []);
  assert.deepEqual([uids(watches), watches.followsRoster], [[], false]);
});

test("a failed request for the roster is undone, unless it is followed", () => {
  const watches = new WatchedUsers();
  const [first, second] = [watches.rosterRequested(), watches.rosterRequested()];
  assert.deepEqual([watches.rosterFailed(first), watches.rosterFailed(second)], [false, true]);
  assert.equal(watches.followRoster(), true);
  assert.equal(watches.followRoster(), false);
  assert.equal(watches.rosterFailed(watches.rosterRequested()), false);
});

test("a refused roster ends the watches of its users", () => {
  const watches = withRoster();
  assert.deepEqual(watches.endRoster(), ["bob"]);
  assert.deepEqual([uids(watches), watches.followsRoster, watches.rosterWasGranted], [["ann"], false, false]);
});

test("without the roster its users are not watched, and those whom the program has named are", () => {
  const watches = withRoster();
  watches.requestSent(["bob"]);
  const isSince = watches.watchedSince(["bob"]);
  const request = watches.rosterRequested();
  watches.unwatchRoster();
  assert.deepEqual([uids(watches), watches.followsRoster], [["ann"], false]);
  const states = new Map([["kim", state("online", "2-0")]]);
  assert.deepEqual(watches.applyRoster(request, states, true), []);
  assert.equal(watches.rosterFailed(request), false, "the server has been told");
  assert.equal(watches.applyChange(added("kim", "2-0")), false);
  assert.ok(isSince("bob"), "a call waits for them");
  assert.deepEqual(watches.applySnapshot(new Map([["bob", state("online", "1-0")]])), []);
  assert.deepEqual(uids(watches), ["ann", "bob"]);
});

test("a request that was unwatched hides no other that may be granted", () => {
  const watches = new WatchedUsers();
  watches.rosterRequested();
  watches.unwatchRoster();
  assert.equal(watches.rosterFailed(watches.rosterRequested()), true);
});

// An older server is asked by name for the users of a roster.

test("an answer to the client itself names no user", () => {
  const watches = withRoster();
  const request = watches.requestSent(["bob"]);
  const [change] = watches.applySnapshot(new Map([["bob", state("away", "2-0")]]), true);
  assert.equal(change?.reason, "meanwhile");
  assert.deepEqual(watches.requestFailed(request, false), []);
  assert.deepEqual(uids(watches), ["ann", "bob"]);
  assert.deepEqual(watches.known(true), ["bob"], "still because of the roster only");
});

test("a user whom the client has asked for itself and then dropped is unwatched if the call fails", () => {
  const watches = withRoster();
  const request = watches.requestSent(["bob"]);
  watches.unwatchRoster();
  watches.applySnapshot(new Map([["bob", state("away", "2-0")]]), true);
  assert.deepEqual(watches.requestFailed(request, false), ["bob"]);
  assert.deepEqual(uids(watches), ["ann"]);
});
