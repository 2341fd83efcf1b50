// Clients with the library in TypeScript, as a program for `tests.system.chaos.libraries`: MODULE HOST PORT. Its input
// and output are those of `library_clients.py` beside it.

import { createInterface } from "node:readline";

const [module, host, port] = process.argv.slice(2);
const { PresenceClient } = await import(module);

const raise = (what) => {
  throw new Error(JSON.stringify(what));
};

async function start({ uid, quiet, status, rooms, users, watched_rooms }) {
  const view = { session: null, users: {}, rooms: {} };
  let wasUnanswered = false;
  const client = new PresenceClient({ host, port: Number(port), uid, quiet, status, rooms, persistent: true })
    .on("connected", ({ session }) => (view.session = session))
    .on("disconnected", ({ reason }) => {
      view.session = null;
      wasUnanswered ||= reason === "login_timeout";
    })
    .on("presence", ({ uid, state }) => (view.users[uid] = [state.status, state.id]))
    .on("room", ({ room, state }) => (view.rooms[room] = state && state.count))
    .on("watchEnded", raise)
    .on("end", (error) => {
      if (error?.name === "Replaced" && wasUnanswered) {
        clients = clients.filter((each) => each.client !== client);
      } else if (error) {
        raise([uid, error.name, error.message]);
      }
    });
  await client.connect();
  for (const [uid, state] of await client.watch(users)) {
    view.users[uid] = [state.status, state.id];
  }
  for (const [room, state] of await client.watchRooms(watched_rooms)) {
    view.rooms[room] = state.count;
  }
  return { uid, client, view };
}

let clients = null;
for await (const line of createInterface({ input: process.stdin })) {
  clients ??= await Promise.all(JSON.parse(line).map(start));
  const views = Object.fromEntries(clients.map(({ uid, view }) => [uid, view]));
  process.stdout.write(`${JSON.stringify(views)}\n`);
}
await Promise.all(clients.map(({ client }) => client.logout()));
