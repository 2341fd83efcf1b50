package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.Push.PresenceChanged;

/**
 * The users whom a client watches, and their newest known states, across connections.
 *
 * <p>Two rules keep the view correct. A state whose id is not newer than the known one is ignored, because a server may
 * lag behind the previous one. And where the answer on a new connection differs from the known state, the difference is
 * reported as a change.
 *
 * <p>A user is watched because the program has named them, or only because of the roster: those are {@code listed}. The
 * answer to a request for the roster is the whole roster, so listed users who are not in it are gone.
 */
final class WatchedUsers {
    private static final int MAX_UIDS_BYTES = 15_000; // of a request; a client's frame holds 16 KiB

    private final Map<String, UserState> known = new LinkedHashMap<>(4);
    private final Map<Long, Set<String>> requested = new LinkedHashMap<>(2); // pending watches, by id
    private final Set<String> listed = new HashSet<>(2);
    private final Map<Long, Set<String>> rosterRequested = new HashMap<>(2); // and the users unwatched since
    private final Map<Long, Collection<String>> unwatched = new HashMap<>(2); // by unwatch without an answer
    boolean followsRoster; // whether the roster is watched again after each login
    boolean rosterWasGranted; // by a server, since the client follows it

    Map<String, UserState> states() {
        return new LinkedHashMap<>(known);
    }

    /** Returns the newest known states of the users in an answer: a later push may have been newer. */
    Map<String, UserState> newest(Map<String, UserState> states) {
        for (Map.Entry<String, UserState> each : states.entrySet()) {
            UserState newer = known.get(each.getKey());
            each.setValue(newer == null ? each.getValue() : newer);
        }
        return states;
    }

    boolean contains(String uid) {
        return known.containsKey(uid);
    }

    /** Returns whether a user is watched only because of the roster. */
    boolean isListed(String uid) {
        return listed.contains(uid);
    }

    /** Returns the users whom the program watches, or those of the roster alone, in lists that each fit a request. */
    List<List<String>> batches(boolean ofRoster) {
        List<String> uids = new ArrayList<>();
        for (String uid : known.keySet()) {
            if (listed.contains(uid) == ofRoster) {
                uids.add(uid);
            }
        }
        return cut(uids);
    }

    /** Returns those whom the server did not let this client see, except some, in such lists. */
    List<List<String>> hiddenBatches(Set<String> without) {
        List<String> uids = new ArrayList<>();
        for (String uid : known.keySet()) {
            if (isHidden(uid) && !listed.contains(uid) && !without.contains(uid)) {
                uids.add(uid);
            }
        }
        return cut(uids);
    }

    /** Returns whether the server did not let this client see some of those watched because of the roster. */
    boolean hidesListed() {
        for (String uid : listed) {
            if (isHidden(uid)) {
                return true;
            }
        }
        return false;
    }

    private boolean isHidden(String uid) {
        return known.get(uid).status.equals(PresenceChanged.HIDDEN);
    }

    /** Adds users whose state may be unknown; returns those whom the program did not watch before. */
    List<String> add(Collection<String> uids) {
        List<String> added = new ArrayList<>();
        for (String uid : new LinkedHashSet<>(uids)) {
            if (!known.containsKey(uid)) {
                known.put(uid, UserState.UNKNOWN);
                added.add(uid);
            } else if (listed.remove(uid)) {
                added.add(uid);
            }
        }
        return added;
    }

    void requestSent(long id, Collection<String> uids) {
        requested.put(id, new LinkedHashSet<>(uids));
    }

    void rosterRequested(long id) {
        rosterRequested.put(id, new HashSet<String>(2));
    }

    /**
     * Applies the answer to a request; returns the changes of users who were watched before.
     *
     * @param isOwn whether it was the client's own request, for users whom it watches already.
     */
    List<PresenceChanged> requestGranted(long id, Map<String, UserState> states, boolean isOwn) {
        List<PresenceChanged> changes = new ArrayList<>();
        Set<String> uids = requested.remove(id);
        for (String uid : uids == null ? Collections.<String>emptySet() : uids) {
            if (isOwn && !known.containsKey(uid)) {
                continue; // they have left with the roster since
            }
            if (!isOwn) {
                listed.remove(uid);
            }
            UserState state = states.get(uid);
            answered(uid, state == null ? UserState.UNKNOWN : state, changes);
        }
        return changes;
    }

    /** Applies the answer to a request for the roster, as above; with {@code isOwn} new users are changes, too. */
    List<PresenceChanged> rosterGranted(long id, Map<String, UserState> answer, boolean isOwn) {
        Set<String> since = rosterRequested.remove(id);
        if (since == null) {
            return Collections.emptyList(); // all were unwatched since
        }
        followsRoster = rosterWasGranted = true;
        Map<String, UserState> states = new LinkedHashMap<>(answer);
        states.keySet().removeAll(since);
        List<PresenceChanged> changes = new ArrayList<>();
        for (String uid : new ArrayList<>(known.keySet())) {
            if (listed.contains(uid) && !states.containsKey(uid)) {
                end(Collections.singleton(uid));
                changes.add(new PresenceChanged(uid, UserState.GONE, PresenceChanged.REMOVED));
            }
        }
        for (Map.Entry<String, UserState> each : states.entrySet()) {
            if (!known.containsKey(each.getKey())) {
                listed.add(each.getKey());
                if (isOwn) {
                    known.put(each.getKey(), UserState.UNKNOWN);
                }
            }
            answered(each.getKey(), each.getValue(), changes);
        }
        return changes;
    }

    /** Takes a user's state from an answer; adds the change, if the user was watched before. */
    private void answered(String uid, UserState state, List<PresenceChanged> changes) {
        UserState before = known.get(uid);
        if (before == null || (before.id == null && !state.differsFrom(before))) {
            known.put(uid, state); // the same state may have an id by now
        } else if (state.differsFrom(before)) {
            known.put(uid, state);
            boolean isFirst = before == UserState.UNKNOWN;
            changes.add(new PresenceChanged(
                    uid, state, isFirst ? PresenceChanged.WATCHED : PresenceChanged.MEANWHILE));
        }
    }

    /** Drops a failed request; returns the unwatch that undoes it, in case it was granted. */
    @Nullable
    Packet requestFailed(long id) {
        if (rosterRequested.remove(id) != null) {
            boolean isWatched = followsRoster || !rosterRequested.isEmpty();
            return isWatched ? null : Requests.unwatchRoster();
        }
        Set<String> failed = requested.remove(id);
        if (failed == null) {
            return null;
        }
        failed.removeAll(known.keySet());
        for (Set<String> others : requested.values()) {
            failed.removeAll(others);
        }
        return failed.isEmpty() ? null : Requests.unwatch(failed);
    }

    /** Drops all pending requests. */
    void connectionLost() {
        requested.clear();
        rosterRequested.clear();
        unwatched.clear();
    }

    /** Applies a pushed change; returns false if the user is not watched or the state is not newer. */
    boolean applyChange(PresenceChanged push) {
        UserState before = known.get(push.uid);
        if (push.reason.equals(PresenceChanged.REMOVED)) {
            boolean wasListed = listed.contains(push.uid);
            if (wasListed) {
                end(Collections.singleton(push.uid));
            }
            return wasListed;
        }
        if (before == null) {
            boolean isAdded = push.reason.equals(PresenceChanged.WATCHED) || push.reason.equals(PresenceChanged.HIDDEN);
            if (!(isAdded && joins(push.uid))) {
                return false;
            }
            listed.add(push.uid);
        } else if (!push.state.isNewerThan(before)) {
            return false;
        }
        known.put(push.uid, push.state);
        return true;
    }

    /** Returns whether to watch a user whom the server adds: not if it is about to read an unwatch. */
    private boolean joins(String uid) {
        for (Collection<String> uids : unwatched.values()) {
            if (uids.contains(uid)) {
                return false;
            }
        }
        return followsRoster;
    }

    /** Follows the roster from now on; returns whether that is new. */
    boolean followRoster() {
        boolean isNew = !followsRoster;
        followsRoster = true;
        return isNew;
    }

    /** The server has refused to let some users be watched; another request of them may be pending. */
    void end(Collection<String> uids) {
        for (String uid : uids) {
            known.remove(uid);
            listed.remove(uid);
        }
    }

    /** Follows the roster no longer, also if a request for it is granted that was sent before. */
    void unwatchRoster() {
        rosterRequested.clear();
        endRoster();
    }

    /** Follows the roster no longer; returns the users watched only because of it, who are not any more. */
    List<String> endRoster() {
        followsRoster = rosterWasGranted = false;
        List<String> ended = new ArrayList<>();
        for (String uid : known.keySet()) {
            if (listed.contains(uid)) {
                ended.add(uid);
            }
        }
        end(ended);
        return ended;
    }

    /** Stops watching some users, or all for null; until the answer the server may add them by the roster. */
    void unwatchSent(long id, @Nullable Collection<String> uids) {
        unwatched.put(id, uids == null ? Collections.<String>emptySet() : uids);
        remove(uids);
    }

    void unwatchAnswered(long id) {
        unwatched.remove(id);
    }

    /** Stops watching some users, all and the roster for null, also in pending requests. */
    void remove(@Nullable Collection<String> uids) {
        Collection<String> gone = uids == null ? new ArrayList<>(known.keySet()) : uids;
        if (uids == null) {
            unwatchRoster();
        }
        for (Set<String> each : requested.values()) {
            if (uids == null) {
                each.clear();
            } else {
                each.removeAll(gone);
            }
        }
        for (Set<String> since : rosterRequested.values()) {
            since.addAll(gone);
        }
        end(gone);
    }

    private static List<List<String>> cut(List<String> uids) {
        List<List<String>> batches = new ArrayList<>();
        List<String> batch = new ArrayList<>();
        int bytes = 0;
        for (String uid : uids) {
            int cost = 2 + 3 * uid.length(); // an upper bound, with its header in MessagePack
            if (!batch.isEmpty() && (batch.size() == Schema.MAX_UIDS || bytes + cost > MAX_UIDS_BYTES)) {
                batches.add(batch);
                batch = new ArrayList<>();
                bytes = 0;
            }
            batch.add(uid);
            bytes += cost;
        }
        if (!batch.isEmpty()) {
            batches.add(batch);
        }
        return batches;
    }
}
