//! A reload: every slot's worker replaced by a new one, one slot at a time, and none that does not get ready.
//!
//! The slot whose turn it is gets a successor; when that one serves, its predecessor drains and the next slot has its
//! turn. A successor that ends before it is ready ends the reload: what made it fail would make the next one fail, too,
//! and the workers that serve are worth more than a complete reload.

use super::slot::Phase;
use super::{Action, Limits, Machine};

#[derive(Debug, Default)]
pub(super) struct Reload {
    /// The slot whose turn it is, or the one after the last.
    turn: u16,
    failed: Option<u16>,
}

impl Reload {
    /// The new worker of `slot` has ended before it was ready.
    pub(super) fn failed(&mut self, slot: u16) {
        if slot == self.turn {
            self.failed = Some(slot);
        }
    }
}

impl Machine {
    /// Begins a reload, or begins it anew: those that were replaced already are out of date again.
    pub(super) fn on_reload(&mut self, limits: Limits, out: &mut Vec<Action>) {
        if self.stop.is_some() {
            return;
        }
        self.limits = limits;
        self.generation = self.generation.saturating_add(1);
        self.reload = Some(Reload::default());
        // Those that were given up do not wait for their turn: nobody serves in them.
        for slot in self.slots.iter_mut().filter(|slot| slot.is_dead()) {
            slot.revive(out);
        }
    }

    /// Does what can be done of a reload now; called after each event.
    pub(super) fn go_on_reloading(&mut self, out: &mut Vec<Action>) {
        let Some(reload) = &mut self.reload else {
            return;
        };
        while reload.failed.is_none()
            && let Some(slot) = self.slots.get_mut(usize::from(reload.turn))
        {
            match &slot.phase {
                // Whoever fills it next is a new one anyway.
                Phase::Backoff { .. } | Phase::Stopped | Phase::Decommissioned | Phase::Dead => {}
                Phase::Live(live) if live.is_serving() && live.generation == self.generation => {}
                Phase::Live(live) if live.is_serving() && slot.successor.is_none() => {
                    // At most two processes a slot: an earlier one may still drain, under its deadline.
                    if slot.leaving.is_empty() {
                        slot.succeed(out);
                    }
                    return;
                }
                Phase::Live(_) | Phase::Spawning(_) => return,
            }
            reload.turn = reload.turn.saturating_add(1);
        }
        out.push(Action::ReportReloaded {
            failed: reload.failed,
        });
        self.reload = None;
    }
}
