//! When state is moved: the moves of a list of actions.

use crate::action::{Action, Kept, Moved};
use crate::config::MemoryTier;
use crate::model::Layer;
use crate::plan::placement::StateTiers;
use std::collections::{HashSet, VecDeque};

/// What the moves of a stage depend on.
#[derive(Clone, Copy, Debug)]
pub struct Offload<'a> {
    pub tiers: &'a StateTiers,
    pub layers: &'a [Layer],
    /// Whether updates are delayed, so that what they read is known when the step begins.
    pub delayed: bool,
    /// Units whose state is on its way before it is needed.
    pub prefetch: usize,
    /// By unit: whether it has trainable weights.
    pub trainable: &'a [bool],
    /// By layer: whether forward keeps something of it.
    pub keeps: &'a [bool],
}

impl Offload<'_> {
    /// The list with its moves: weights are on their way so many gathers before they are gathered, and the update is done unit
    /// by unit. A list of a stage where all lives on the device stays as it is.
    pub fn apply(&self, actions: Vec<Action>) -> Vec<Action> {
        let actions = self.with_saved(self.with_fetches(actions));
        if self.tiers.updates_in_place() {
            return actions;
        }
        if self.delayed {
            return self.with_delayed_update(actions);
        }
        let mut list = Vec::with_capacity(actions.len());
        for action in actions {
            list.push(action);
            if action == Action::Update {
                self.update(&mut list);
            }
        }
        list
    }

    /// The list with updates among backward: a unit is updated as soon as nothing in the step reads its weights any more, and with
    /// prefetch its state comes and goes while layers are computed.
    fn with_delayed_update(&self, actions: Vec<Action>) -> Vec<Action> {
        if !actions.contains(&Action::Update) {
            return actions;
        }
        // Units by their last reader, with its place in the list.
        let mut last = vec![0; self.trainable.len()];
        for (place, action) in actions.iter().enumerate() {
            self.read(action).for_each(|unit| last[unit] = place);
        }
        let mut units: Vec<usize> = (0..last.len()).filter(|unit| self.trainable[*unit]).collect();
        units.sort_by_key(|unit| last[*unit]);
        let (moves, ahead) = (self.moves_state(), self.ahead());
        let fetch_before = |at: usize| if ahead > 0 { last[units[at.saturating_sub(ahead - 1)]] } else { usize::MAX };
        let fetch = |unit: &usize| Action::Fetch { unit: *unit, what: Moved::State };
        let (mut list, mut updated, mut fetched) = (Vec::with_capacity(actions.len() + 4 * units.len()), 0, 0);
        for (place, action) in actions.into_iter().enumerate() {
            while moves && fetched < units.len() && fetch_before(fetched) == place {
                list.push(fetch(&units[fetched]));
                fetched += 1;
            }
            list.push(action);
            while updated < units.len() && last[units[updated]] == place {
                self.update_one(&units, updated, &mut list);
                updated += 1;
            }
            if action == Action::Update {
                self.wait_last(&units, &mut list);
            }
        }
        list
    }

    /// The units whose weights an action reads, or gathers.
    fn read(&self, action: &Action) -> impl Iterator<Item = usize> {
        let gathered = if let Action::Gather { unit, .. } = *action { Some(unit) } else { None };
        let read = action.layer_read().map(|layer| self.layers[layer].units());
        gathered.into_iter().chain(read.into_iter().flatten())
    }

    /// Whether some of what an update reads or writes is elsewhere than where it is computed.
    fn moves_state(&self) -> bool {
        let tiers = [self.tiers.parameters, self.tiers.gradients, self.tiers.optimizer];
        tiers.into_iter().any(|home| home != self.tiers.update())
    }

    /// Units whose state is on its way before its update.
    fn ahead(&self) -> usize {
        if self.moves_state() { self.prefetch } else { 0 }
    }

    /// The update of one of these units: without prefetch its state comes first; it goes back behind.
    fn update_one(&self, units: &[usize], place: usize, list: &mut Vec<Action>) {
        let (unit, moves, ahead) = (units[place], self.moves_state(), self.ahead());
        if moves && ahead == 0 {
            list.push(Action::Fetch { unit, what: Moved::State });
        }
        list.push(Action::UpdateUnit { unit });
        if moves {
            list.push(Action::Store { unit });
            list.extend(place.checked_sub(ahead).map(|before| Action::WaitStore { unit: units[before] }));
        }
    }

    /// Waits for the state of the last units.
    fn wait_last(&self, units: &[usize], list: &mut Vec<Action>) {
        if self.moves_state() {
            let left = units.len().saturating_sub(self.ahead());
            list.extend(units[left..].iter().map(|unit| Action::WaitStore { unit: *unit }));
        }
    }

    /// What forward keeps of a layer goes behind it, while so many layers more are computed, and comes back so many layers
    /// before backward reads it.
    fn with_saved(&self, actions: Vec<Action>) -> Vec<Action> {
        if self.tiers.activations == MemoryTier::Device {
            return actions;
        }
        let keeps = |layer: usize| self.keeps.get(layer) == Some(&true);
        let reads = |action: &Action| match *action {
            Action::Recompute { micro, layer, .. }
            | Action::Backward { micro, layer }
            | Action::BackwardInput { micro, layer }
                if keeps(layer) =>
            {
                Some((micro, layer))
            }
            _ => None,
        };
        // Each layer's first read of a micro-batch.
        let mut seen = HashSet::new();
        let order: Vec<(usize, usize)> = actions.iter().filter_map(reads).filter(|read| seen.insert(*read)).collect();
        let (mut stored, mut fetched, mut next) = (HashSet::new(), HashSet::new(), 0);
        let mut going = VecDeque::new();
        let mut list = Vec::with_capacity(actions.len() + 3 * order.len());
        for action in actions {
            if reads(&action).is_some_and(|read| order.get(next) == Some(&read)) {
                let wanted = order[next..].iter().take(1 + self.prefetch);
                for &(micro, layer) in wanted.filter(|wanted| stored.contains(*wanted)) {
                    if fetched.insert((micro, layer)) {
                        list.push(Action::FetchSaved { micro, layer });
                    }
                }
                next += 1;
            }
            list.push(action);
            if let Action::Forward { micro, layer } = action
                && keeps(layer)
            {
                list.push(Action::StoreSaved { micro, layer, what: Kept::All });
                stored.insert((micro, layer));
                going.push_back((micro, layer));
                if going.len() > self.prefetch {
                    let before = going.pop_front();
                    list.extend(before.map(|(micro, layer)| Action::WaitStoreSaved { micro, layer }));
                }
            }
        }
        list
    }

    fn with_fetches(&self, actions: Vec<Action>) -> Vec<Action> {
        if self.tiers.parameters == MemoryTier::Device {
            return actions;
        }
        let gathered = |action: &Action| match action {
            Action::Gather { unit, slot: true, .. } => Some(*unit),
            _ => None,
        };
        let order: Vec<usize> = actions.iter().filter_map(gathered).collect();
        let mut wanted = order.iter().copied();
        let mut list = Vec::with_capacity(actions.len() + order.len());
        let fetch = |unit| Action::Fetch { unit, what: Moved::Weights };
        let mut is_first = true;
        for action in actions {
            if gathered(&action).is_some() {
                let more = if std::mem::take(&mut is_first) { 1 + self.prefetch } else { 1 };
                list.extend(wanted.by_ref().take(more).map(fetch));
            }
            list.push(action);
        }
        list
    }

    /// The update, unit by unit: the state of later units comes and that of earlier ones goes meanwhile.
    fn update(&self, list: &mut Vec<Action>) {
        let units: Vec<usize> = (0..self.trainable.len()).filter(|unit| self.trainable[*unit]).collect();
        let ahead = self.ahead();
        let fetch = |unit: &usize| Action::Fetch { unit: *unit, what: Moved::State };
        list.extend(units.iter().take(ahead).map(fetch));
        for place in 0..units.len() {
            if ahead > 0 {
                list.extend(units.get(place + ahead).map(fetch));
            }
            self.update_one(&units, place, list);
        }
        self.wait_last(&units, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_comes_before_its_update_and_goes_after_it() {
        let tiers = StateTiers {
            parameters: MemoryTier::Host,
            gradients: MemoryTier::Host,
            optimizer: MemoryTier::Disk,
            activations: MemoryTier::Device,
        };
        let gather = |unit| Action::Gather { unit, refresh: false, slot: true };
        let (weights, state) =
            (|unit| Action::Fetch { unit, what: Moved::Weights }, |unit| Action::Fetch { unit, what: Moved::State });
        let (update, store, settle) =
            (|unit| Action::UpdateUnit { unit }, |unit| Action::Store { unit }, |unit| Action::WaitStore { unit });
        let list = |prefetch| {
            let offload = Offload {
                tiers: &tiers,
                layers: &[],
                delayed: false,
                prefetch,
                trainable: &[true, false, true],
                keeps: &[],
            };
            offload.apply(vec![gather(0), gather(1), gather(2), Action::Update])
        };
        assert_eq!(
            list(0),
            [
                weights(0),
                gather(0),
                weights(1),
                gather(1),
                weights(2),
                gather(2),
                Action::Update,
                state(0),
                update(0),
                store(0),
                settle(0),
                state(2),
                update(2),
                store(2),
                settle(2),
            ]
        );
        assert_eq!(
            list(1),
            [
                weights(0),
                weights(1),
                gather(0),
                weights(2),
                gather(1),
                gather(2),
                Action::Update,
                state(0),
                state(2),
                update(0),
                store(0),
                update(2),
                store(2),
                settle(0),
                settle(2),
            ]
        );
        let here = StateTiers {
            parameters: MemoryTier::Device,
            gradients: MemoryTier::Device,
            optimizer: MemoryTier::Device,
            activations: MemoryTier::Device,
        };
        let offload =
            Offload { tiers: &here, layers: &[], delayed: false, prefetch: 2, trainable: &[true], keeps: &[] };
        assert_eq!(offload.apply(vec![gather(0), Action::Update]), [gather(0), Action::Update]);
    }

    #[test]
    fn saved_tensors_go_behind_forward_and_come_before_they_are_read() {
        let tiers = StateTiers {
            parameters: MemoryTier::Device,
            gradients: MemoryTier::Device,
            optimizer: MemoryTier::Device,
            activations: MemoryTier::Disk,
        };
        let forward = |micro, layer| Action::Forward { micro, layer };
        let backward = |micro, layer| Action::Backward { micro, layer };
        let store = |micro, layer| Action::StoreSaved { micro, layer, what: Kept::All };
        let settle = |micro, layer| Action::WaitStoreSaved { micro, layer };
        let fetch = |micro, layer| Action::FetchSaved { micro, layer };
        let offload = Offload {
            tiers: &tiers,
            layers: &[],
            delayed: false,
            prefetch: 1,
            trainable: &[],
            keeps: &[false, true, true],
        };
        let pass =
            |micro| [forward(micro, 0), forward(micro, 1), forward(micro, 2), backward(micro, 2), backward(micro, 1)];
        let list = offload.apply([pass(0), pass(1)].concat());
        let expected = [
            [forward(0, 0), forward(0, 1), store(0, 1), forward(0, 2), store(0, 2), settle(0, 1)].to_vec(),
            // Nothing of the next micro-batch is there to be fetched yet.
            [fetch(0, 2), fetch(0, 1), backward(0, 2), backward(0, 1)].to_vec(),
            [forward(1, 0), forward(1, 1), store(1, 1), settle(0, 2), forward(1, 2), store(1, 2), settle(1, 1)]
                .to_vec(),
            [fetch(1, 2), fetch(1, 1), backward(1, 2), backward(1, 1)].to_vec(),
        ];
        assert_eq!(list, expected.concat());
    }
}
