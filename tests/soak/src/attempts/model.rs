//! Connection attempts as the kernel's connection manager sees them: states, actions, and the event
//! that each action raises.

/// An end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// The end that connects.
    Active,
    /// The end that the listener gets.
    Passive,
}

impl Side {
    /// The other end.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// The passive end has the request.
    Asked,
    /// The passive end has the request, and the active identifier is destroyed.
    Abandoned,
    /// The active end has the response.
    Answered,
    /// Both ends are connected.
    Established,
    /// This end has sent a DREQ, which the other one has not answered.
    Ending(Side),
    /// The attempt is over. These identifiers are left.
    Over {
        /// That of the active end.
        active: bool,
        /// That of the passive end.
        passive: bool,
    },
}

/// What a program does with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// The passive end accepts the request.
    Accept,
    /// An end rejects the request or the response, with private data.
    Reject(Side),
    /// The active end confirms the response.
    Establish,
    /// An end disconnects.
    Disconnect(Side),
    /// The identifier of an end is destroyed.
    Drop(Side),
}

/// The event that an action raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    /// `CONNECT_RESPONSE`.
    Response,
    /// `ESTABLISHED`.
    Established,
    /// `REJECTED` with the private data of [`Action::Reject`].
    Rejected,
    /// `REJECTED` without private data.
    Dropped,
    /// `DISCONNECTED` without an error.
    Disconnected,
}

/// What follows from an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outcome {
    /// The next state.
    pub(super) state: State,
    /// The event, and the end that gets it.
    pub(super) seen: Option<(Side, Seen)>,
}

const ACTIONS: [Action; 8] = [
    Action::Accept,
    Action::Reject(Side::Passive),
    Action::Reject(Side::Active),
    Action::Establish,
    Action::Disconnect(Side::Active),
    Action::Disconnect(Side::Passive),
    Action::Drop(Side::Active),
    Action::Drop(Side::Passive),
];

/// What is left of an attempt: the identifier of one end.
fn left(side: Side) -> State {
    State::Over { active: side == Side::Active, passive: side == Side::Passive }
}

const BOTH: State = State::Over { active: true, passive: true };
const NONE: State = State::Over { active: false, passive: false };

impl State {
    /// Whether no identifier is left.
    pub(super) fn is_gone(self) -> bool {
        self == NONE
    }

    /// The actions that are possible.
    pub(super) fn actions(self) -> impl Iterator<Item = Action> {
        ACTIONS.into_iter().filter(move |action| self.after(*action).is_some())
    }

    /// What follows from an action. `None`: it is not possible, or is not tried.
    pub(super) fn after(self, action: Action) -> Option<Outcome> {
        use Side::{Active, Passive};
        let outcome = |state, seen| Some(Outcome { state, seen });
        match (self, action) {
            (Self::Asked, Action::Accept) => outcome(Self::Answered, Some((Active, Seen::Response))),
            (Self::Asked, Action::Reject(Passive)) => outcome(left(Active), Some((Active, Seen::Rejected))),
            (Self::Asked, Action::Drop(Passive)) => outcome(left(Active), Some((Active, Seen::Dropped))),
            // Events of a request that was not accepted are dropped by the kernel.
            (Self::Asked, Action::Drop(Active)) => outcome(Self::Abandoned, None),
            // Nothing is connected: the kernel sends nothing.
            (Self::Asked, Action::Disconnect(Active)) => outcome(self, None),
            (Self::Abandoned, Action::Accept | Action::Drop(Passive)) => outcome(NONE, None),
            (Self::Answered, Action::Establish) => {
                outcome(Self::Established, Some((Passive, Seen::Established)))
            }
            (Self::Answered, Action::Reject(Active)) => outcome(BOTH, Some((Passive, Seen::Rejected))),
            (Self::Answered, Action::Drop(side)) => {
                outcome(left(side.other()), Some((side.other(), Seen::Dropped)))
            }
            (Self::Answered, Action::Disconnect(_)) => outcome(self, None),
            (Self::Established, Action::Disconnect(side)) => {
                outcome(Self::Ending(side), Some((side.other(), Seen::Disconnected)))
            }
            (Self::Established, Action::Drop(side)) => {
                outcome(left(side.other()), Some((side.other(), Seen::Disconnected)))
            }
            (Self::Ending(by), Action::Disconnect(side)) if side == by => outcome(self, None),
            (Self::Ending(by), Action::Disconnect(_)) => outcome(BOTH, Some((by, Seen::Disconnected))),
            (Self::Ending(by), Action::Drop(side)) if side == by => outcome(left(side.other()), None),
            (Self::Ending(by), Action::Drop(_)) => outcome(left(by), Some((by, Seen::Disconnected))),
            (Self::Over { active: true, passive }, Action::Drop(Active)) => {
                outcome(Self::Over { active: false, passive }, None)
            }
            (Self::Over { active, passive: true }, Action::Drop(Passive)) => {
                outcome(Self::Over { active, passive: false }, None)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn reachable(from: State) -> HashSet<State> {
        let (mut seen, mut todo) = (HashSet::new(), vec![from]);
        while let Some(state) = todo.pop() {
            if seen.insert(state) {
                todo.extend(state.actions().filter_map(|action| state.after(action)).map(|next| next.state));
            }
        }
        seen
    }

    #[test]
    fn every_attempt_can_end() {
        let states = reachable(State::Asked);
        assert_eq!(states.len(), 10, "{states:?}");
        for state in states {
            assert!(reachable(state).contains(&NONE), "{state:?}");
            assert_eq!(state.is_gone(), state.actions().next().is_none(), "{state:?}");
        }
    }

    #[test]
    fn events_go_to_identifiers_that_are_left() {
        for state in reachable(State::Asked) {
            for action in state.actions() {
                let Some(Outcome { state: next, seen: Some((side, _)) }) = state.after(action) else {
                    continue;
                };
                let gone = match next {
                    State::Over { active, passive } => match side {
                        Side::Active => !active,
                        Side::Passive => !passive,
                    },
                    State::Abandoned => side == Side::Active,
                    _ => false,
                };
                assert!(!gone, "{state:?}, {action:?}: {next:?}");
            }
        }
    }
}
