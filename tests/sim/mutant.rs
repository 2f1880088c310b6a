//! Mutants: a rule of the protocol is left out, and the simulator must notice.

use crate::scenario::Feature::{self as F};
use crate::scenario::plot::Plot;
use crate::scripts;
use crate::server::Patch;
use crate::world::{LeftOut, Rule, leave_out};

/// A rule that is left out, in the scripts or in the client.
#[derive(Debug)]
pub struct Mutant {
    /// The rule.
    pub name: &'static str,
    /// Changes to the texts of the scripts.
    pub patches: &'static [Patch],
    pub rule: Option<Rule>,
    /// Where it shows soonest: with this many servers, and with these features.
    pub servers: usize,
    pub features: &'static [F],
    /// Or in this plot.
    pub plot: Option<Plot>,
}

impl Mutant {
    /// This thread's clients do without the rule until the returned value is dropped.
    pub fn enter(&self) -> LeftOut {
        leave_out(self.rule)
    }

    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|mutant| mutant.name == name)
    }

    /// Whether each of its changes applies: a script may have been reworded.
    pub fn changes_something(&self) -> bool {
        self.patches.iter().all(|(from, _)| scripts::ALL.iter().any(|(_, text)| text.contains(from)))
    }
}

const fn client(name: &'static str, rule: Rule, features: &'static [F]) -> Mutant {
    Mutant { name, patches: &[], rule: Some(rule), servers: 3, features, plot: None }
}

const fn lua(
    name: &'static str,
    servers: usize,
    features: &'static [F],
    patches: &'static [Patch],
) -> Mutant {
    Mutant { name, patches, rule: None, servers, features, plot: None }
}

const fn client_in(name: &'static str, rule: Rule, plot: Plot) -> Mutant {
    Mutant { name, patches: &[], rule: Some(rule), servers: 3, features: &[], plot: Some(plot) }
}

const fn lua_in(name: &'static str, plot: Plot, patches: &'static [Patch]) -> Mutant {
    Mutant { name, patches, rule: None, servers: 3, features: &[], plot: Some(plot) }
}

/// Rules without which the simulator finds a violation within a minute, mostly within a second.
pub static ALL: &[Mutant] = &[
    client_in("deadline", Rule::Deadline, Plot::LateReply),
    client("majority", Rule::Majority, &[F::Cuts, F::LongCommands, F::Impatience]),
    client("stored-token", Rule::StoredToken, &[F::Cuts, F::ServerPauses, F::ClockSkew, F::OtherNames]),
    client(
        "release-is-sent",
        Rule::ReleaseIsSent,
        &[F::IdleLimit, F::Login, F::ScriptFlush, F::LongCommands],
    ),
    client("release-reconnects", Rule::ReleaseReconnects, &[F::IdleLimit, F::Login, F::LongCommands]),
    client("resend", Rule::Resend, &[F::IdleLimit, F::Login, F::LongCommands]),
    client("woken-by-end", Rule::WokenByEnd, &[F::IdleLimit, F::LongCommands]),
    client("abort", Rule::Abort, &[F::Cuts, F::LongCommands, F::Impatience, F::Signals]),
    client_in("abort-aside", Rule::AbortAside, Plot::CutGate),
    client_in("release-former", Rule::ReleaseFormer, Plot::FormerName),
    client("keep-turn", Rule::KeepTurn, &[F::LongCommands]),
    lua("queue-is-in-order", 1, &[F::LongCommands], &[("return our_stamp() - LANE", "return -our_stamp()")]),
    lua(
        "readers-wait-for-writers",
        1,
        &[F::Sharing, F::LongCommands],
        &[("ahead < k.capacity and are_of_our_mode(k, ahead)", "ahead < k.capacity")],
    ),
    lua(
        "token-is-stored",
        1,
        &[F::LongCommands],
        &[("call('SET', k.fence, fence, 'PX', FENCE_TTL_MS)", ""), ("IS_GATE and NOW_MS or 0", "0")],
    ),
    lua(
        "release-compares",
        1,
        &[F::LongCommands, F::PowerLoss, F::Pauses],
        &[("try('GET', k.lock) == CLAIM", "try('GET', k.lock)")],
    ),
    lua(
        "token-grows",
        1,
        &[F::LongCommands],
        &[("k.last_fence + 1", "k.last_fence"), ("IS_GATE and NOW_MS or 0", "0")],
    ),
    lua("token-follows-clock", 3, &[F::DataLoss, F::LongCommands], &[("IS_GATE and NOW_MS or 0", "0")]),
    Mutant {
        name: "quarantine",
        rule: Some(Rule::Memory),
        servers: 3,
        features: &[F::DataLoss, F::LongCommands, F::Cuts],
        plot: None,
        patches: &[("if quarantined_for > 0 then\nreturn wait_for_quarantine()\nend", "")],
    },
    lua(
        "marker-names-reign",
        3,
        &[F::DataLoss, F::Restarts, F::LongCommands, F::Cuts],
        &[("return marked == our_reign\n", "return marked\n")],
    ),
    lua("good-standing", 3, &[F::LongQuarantine, F::Impatience], &[("since + 1000 <= raised or", "")]),
    lua(
        "no-overtaking",
        1,
        &[F::LongCommands],
        &[
            ("return ahead == 0 or", "return true or"),
            ("k.must_wait = not k.is_first and not is_our_turn(k)", "k.must_wait = false"),
        ],
    ),
    lua(
        "groups-exclude-each-other",
        1,
        &[F::Sharing, F::LongCommands],
        &[("elseif current(k) == mode then", "elseif max_holders(current(k)) then")],
    ),
    lua(
        "slots-are-counted",
        1,
        &[F::Slots, F::LongCommands],
        &[("(max_holders(mode) or 0) - sharers", "(max_holders(mode) or 0)")],
    ),
    lua(
        "slots-have-numbers",
        1,
        &[F::Slots, F::LongCommands],
        &[(
            "return slot < slots_of(MODE) and slot or (string.find(map, '.', 1, true) or #map + 1) - 1",
            "return 0",
        )],
    ),
    lua(
        "a-slot-has-one-holder",
        3,
        &[F::Slots, F::LongCommands, F::OtherNames],
        &[("k.capacity = k.holder and 0 or 1", "k.capacity = 1")],
    ),
    lua(
        "votes-are-for-the-gates-slot",
        3,
        &[F::Slots, F::LongCommands, F::OtherNames],
        &[("LOCKS[i][IS_GATE and 'lowest_slot' or 'slot'] = slot", "LOCKS[i].slot = nil")],
    ),
    lua(
        "locks-expire",
        1,
        &[F::PowerLoss, F::LongCommands],
        &[("call('SET', k.lock, value, 'PX', ttl)", "call('SET', k.lock, value)")],
    ),
    lua(
        "raise-never-lowers",
        3,
        &[F::Sharing, F::SlowLines, F::Cuts, F::ClockSkew],
        &[("refused = refused or attempt ~= ATTEMPT or is_broken or is_behind", "refused = false")],
    ),
    lua(
        "dead-waiters-leave",
        1,
        &[F::PowerLoss, F::LongCommands],
        &[("if k.has_living_only or not has_queue(k) then", "if true then")],
    ),
    lua("exclusive-excludes", 1, &[F::LongCommands], &[("return current(k) and 0 or 1", "return 1")]),
    client("cancel-agreed", Rule::CancelAgreed, &[F::Cancelling, F::LongCommands]),
    client("cancel-waits", Rule::CancelWaits, &[F::Cancelling, F::LongCommands]),
    client("only-success-marks", Rule::OnlySuccessMarks, &[F::Once, F::LongCommands]),
    lua("success-is-marked", 1, &[F::Once], &[("if DONE ~= '' then", "if false then")]),
    lua(
        "every-voter-checks-the-mark",
        3,
        &[F::Once, F::Cuts, F::LongCommands],
        &[("ONCE and done_reply(ONCE)", "ONCE and IS_GATE and done_reply(ONCE)")],
    ),
    client_in("lease-from-request", Rule::LeaseFromRequest, Plot::LateReply),
    client_in("own-ttl", Rule::OwnTtl, Plot::ExtendedInMinority),
    client_in("wait-for-old-servers", Rule::WaitForOldServers, Plot::ForgottenLease),
    client_in("raised-bound", Rule::RaisedBound, Plot::ForgottenLongLease),
    client_in("acknowledged-ttl", Rule::AcknowledgedTtl, Plot::UnacknowledgedExtension),
    lua_in("second-bound", Plot::SecondBound, &[("raised = math.max(raised, NOW_MS - longest)", "")]),
    lua_in(
        "second-bound-waits",
        Plot::ForgottenLongLease,
        &[("math.max(raised, NOW_MS - longest)", "NOW_MS")],
    ),
    client_in("refusals-report", Rule::RefusalsReport, Plot::ForgottenLease),
    client_in("heal-after-majority", Rule::HealAfterMajority, Plot::Flushed),
    client_in("tombstone", Rule::Tombstone, Plot::LateRequests),
    client_in("older-attempts", Rule::ReleaseOlderAttempts, Plot::LateToken),
    lua_in(
        "healing-is-refused",
        Plot::ReleasedWhileExtended,
        &[("refuse_healing()\nreturn lost_reply(reply)", "return lost_reply(reply)")],
    ),
    lua(
        "stamps-of-one-clock",
        3,
        &[F::Superseding, F::ClockSkew, F::Refusals],
        &[("return request.clock == CLOCK or", "return true or")],
    ),
    client_in("yield", Rule::Yield, Plot::TwoGates),
    client_in("yield-to-waiter", Rule::YieldToWaiter, Plot::TwoKeysOfFive),
    client_in("carry-place", Rule::CarryPlace, Plot::TwoGatesOfFive),
    client_in("vote-ttl", Rule::VoteTtl, Plot::LoneVote),
    client_in("youngest-gives-up", Rule::YoungestGivesUp, Plot::Circle),
    client_in("sign-of-life", Rule::SignOfLife, Plot::Circle),
    client_in("any-slot", Rule::AnySlot, Plot::Circle),
    lua_in(
        "tombstone-is-obeyed",
        Plot::LateRequests,
        &[("if may_have_tombstone and call('EXISTS', TOMBSTONE) == 1 then", "if false then")],
    ),
    lua(
        "release-takes-strays",
        3,
        &[F::Kills, F::SlowLines, F::LongCommands],
        &[("not IS_BEARER and attempt <= ATTEMPT)", "not IS_BEARER and attempt == ATTEMPT)")],
    ),
    lua_in(
        "extend-compares",
        Plot::HealedAmongOthers,
        &[("if attempt ~= ATTEMPT or k.holder_record.ended then", "if not current(k) then")],
    ),
    lua_in(
        "newer-attempt-stays",
        Plot::LateVotes,
        &[("if k.is_ours and k.is_ours > ATTEMPT then", "if false then")],
    ),
    client_in("confirm-token", Rule::ConfirmToken, Plot::BrokenVote),
    lua_in(
        "no-minimum-hold-of-votes",
        Plot::RenewedVote,
        &[("IS_BEARER and min_hold_left(k.holder_record) or 0", "min_hold_left(k.holder_record)")],
    ),
    lua_in(
        "renewal-never-shortens",
        Plot::LateRenewal,
        &[("int_string(math.max(tonumber(TTL), at_least))", "TTL")],
    ),
    lua_in(
        "protocols-are-compared",
        Plot::DistantProtocol,
        &[("if theirs and math.abs(theirs - PROTOCOL) > 1 then", "if false then")],
    ),
    lua_in(
        "heal-takes-nothing-away",
        Plot::HealedAmongOthers,
        &[("if not k.is_ours and (is_taken or free_capacity(k, MODE) <= 0) then", "if false then")],
    ),
    client_in("second-chance", Rule::SecondChance, Plot::SlowVoters),
    client_in("release-strays", Rule::ReleaseStrays, Plot::StrayVotes),
    client_in("release-votes", Rule::ReleaseVotes, Plot::LoneGateVote),
    client_in("cancel-names-grant", Rule::CancelNamesGrant, Plot::NewerHolder),
    lua_in(
        "a-quarantined-gate-is-passed-over",
        Plot::RestartedGate,
        &[(
            "return { 'quarantined', int_string(quarantined_for), longest_bound }",
            "return blocked_by(1, false)",
        )],
    ),
];
