//! Advice on how to train a model on given devices, for `advise`.

use super::search::{Candidate, Searched, document as searched_document, name};
use crate::document::{Document, Entry, Table};
use crate::screen::{Room, Screen};
use crate::units;
use serde::{Deserialize, Serialize};

/// What advice was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The model, as it was named.
    pub model: String,
    /// Devices.
    pub gpus: u64,
    /// The profile of the machine; empty for this one.
    pub profile: String,
    /// Whose memory and speed are predicted.
    pub software: String,
    /// Sequences of a step, all ranks together.
    pub global_batch: u64,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Price of one device for an hour.
    pub gpu_hour_price: Option<f64>,
}

/// What tokens cost, in the currency of the price.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Of a million tokens.
    pub per_million_tokens: f64,
    /// Of a billion.
    pub per_billion_tokens: f64,
    /// Ends of the band around `per_million_tokens`.
    pub per_million_tokens_band: Option<[f64; 2]>,
}

impl Cost {
    /// At a price of a device's hour: all devices for as long as the tokens take.
    pub fn of(gpus: u64, price: f64, candidate: &Candidate) -> Cost {
        let million = |speed: f64| 1e6 * gpus as f64 * price / 3600.0 / speed;
        let per_million_tokens = million(candidate.tokens_per_second);
        Cost {
            per_million_tokens,
            per_billion_tokens: 1e3 * per_million_tokens,
            // The slower, the dearer.
            per_million_tokens_band: candidate.tokens_per_second_band.map(|[low, high]| [million(high), million(low)]),
        }
    }
}

/// The advice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What was asked.
    pub asked: Asked,
    /// The recommended way in words; empty where nothing fits.
    pub name: String,
    /// What it takes; nothing where nothing fits.
    pub recommended: Option<Candidate>,
    /// What tokens cost, where a price is given.
    pub cost: Option<Cost>,
    /// What would make it fit, where nothing does.
    pub changes: Vec<String>,
    /// The search behind it, with the alternatives and the nearest miss.
    pub search: Searched,
}

impl Advice {
    /// Of a search.
    pub fn of(asked: Asked, search: Searched) -> Advice {
        let recommended = search.best.first().cloned();
        let cost =
            asked.gpu_hour_price.zip(recommended.as_ref()).map(|(price, best)| Cost::of(asked.gpus, price, best));
        let name = recommended.as_ref().map(|best| name(best, None)).unwrap_or_default();
        Advice { asked, name, recommended, cost, changes: Vec::new(), search }
    }

    fn of_what(&self) -> String {
        let Asked { model, gpus, profile, software, global_batch, seq_len, .. } = &self.asked;
        let machine = if profile.is_empty() { "ranks of this machine" } else { profile };
        format!(
            "{model} on {} {machine}, {} of {} tokens a step, as {software} runs it",
            units::count(*gpus),
            units::plural(*global_batch as usize, "sequence", "sequences"),
            units::count(*seq_len)
        )
    }

    /// The document: one screen, then everything that the search has. The screen ends with `next`.
    pub fn document(&self, room: Room, next: &[(&str, String)]) -> Document {
        let mut document = searched_document(&self.search, format!("Advice: {}", self.of_what()));
        document.screen = Some(self.screen(room, next));
        document
    }

    fn screen(&self, room: Room, next: &[(&str, String)]) -> Screen {
        let compose = |_| {
            let mut screen = Screen::default();
            match &self.recommended {
                Some(best) => {
                    let like = if self.search.not_compared.is_empty() { "" } else { "Like no published result: " };
                    // As a plan of it says: a peak whose band passes the capacity may not fit.
                    let passes = best.memory_bytes_band.is_some_and(|[_, high]| high > self.search.capacity_bytes);
                    let fits = if passes { " It may not fit: the band of its peak passes the capacity." } else { "" };
                    screen.said("ANSWER", format!("{like}{}. Predicted for {}.{fits}", self.name, self.of_what()), 4);
                    screen.table(self.figures(best));
                }
                None => screen.said("ANSWER", self.nothing_fits(), 5),
            }
            for change in &self.changes {
                screen.said("FITS", change, 2);
            }
            for alternative in &self.search.alternatives {
                screen.said("INSTEAD", alternative.words(), 3);
            }
            screen.said("SEARCHED", self.searched(), 2);
            if self.recommended.is_some() {
                screen.said("NOT COMPARED", &self.search.not_compared, 2);
                for text in &self.search.assumed {
                    screen.said("ASSUMED", text, 2);
                }
                screen.said("BANDS", &self.search.band_source, 1);
            }
            for (label, text) in next {
                screen.said(label, text, 3);
            }
            screen
        };
        crate::screen::fitting(room, 1, 1, compose)
    }

    fn searched(&self) -> String {
        let Searched { priced, fitting, seconds, limit_bytes, headroom, .. } = &self.search;
        format!(
            "{} ways priced in {}; {} fit into {} a rank, which leaves {} free.",
            units::count(*priced),
            units::duration(*seconds),
            units::count(*fitting),
            units::memory(*limit_bytes as f64),
            units::percent(*headroom)
        )
    }

    fn nothing_fits(&self) -> String {
        let Some(nearest) = &self.search.nearest else { return format!("Nothing fits: {}.", self.of_what()) };
        let over = nearest.memory_bytes.saturating_sub(self.search.limit_bytes);
        format!(
            "Nothing fits: {}. The nearest miss needs {} of a rank, {} too much: {}.",
            self.of_what(),
            units::memory(nearest.memory_bytes as f64),
            units::memory(over as f64),
            name(nearest, None)
        )
    }

    /// The figures of the recommended way, each with its band.
    fn figures(&self, best: &Candidate) -> Table {
        let span = |band: Option<[f64; 2]>, text: fn(f64) -> String| {
            band.map(|[low, high]| format!("{} to {}", text(low), text(high))).unwrap_or_default()
        };
        let seconds = |ms: f64| units::duration(ms / 1e3);
        let memory = best.memory_bytes as f64;
        let share = memory / self.search.capacity_bytes.max(1) as f64;
        let mfu_band = best
            .tokens_per_second_band
            .map(|band| band.map(|end| best.mfu * end / best.tokens_per_second))
            .filter(|_| best.mfu.is_finite());
        let bytes_band = best.memory_bytes_band.map(|band| band.map(|bytes| bytes as f64));
        let mut rows = vec![
            ("time of a step", Entry::number(best.step_ms, seconds(best.step_ms)), span(best.step_ms_band, seconds)),
            (
                "tokens/s, all together",
                Entry::number(best.tokens_per_second, units::quantity(best.tokens_per_second)),
                span(best.tokens_per_second_band, units::quantity),
            ),
        ];
        if best.mfu.is_finite() {
            rows.push(("MFU", Entry::number(best.mfu, units::percent(best.mfu)), span(mfu_band, units::percent)));
        }
        let of_capacity = format!(
            "{} of {} ({})",
            units::memory(memory),
            units::memory(self.search.capacity_bytes as f64),
            units::percent(share)
        );
        rows.push(("memory of the fullest rank", Entry::number(memory, of_capacity), span(bytes_band, units::memory)));
        if let (Some(cost), Some(price)) = (&self.cost, self.asked.gpu_hour_price) {
            let million =
                format!("{} (at {} an hour each)", units::number(cost.per_million_tokens), units::number(price));
            rows.push((
                "cost of a million tokens",
                Entry::number(cost.per_million_tokens, million),
                span(cost.per_million_tokens_band, units::number),
            ));
        }
        let mut table = Table::of("advice", &rows);
        table.words("figure", |(name, _, _)| *name);
        table.words("predicted", |(_, entry, _)| entry.clone());
        let has_band = rows.iter().any(|(_, _, band)| !band.is_empty());
        table.words("80 % band", |(_, _, band)| band).for_machines = !has_band;
        table.build()
    }
}
