//! The page: well-formed, self-contained, whatever records hold.

use proptest::prelude::*;
use zbench_reports::document::{Column, Document, Entry, Table, Tone};
use zbench_reports::grid_report::comparison;
use zbench_reports::render::html;
use zbench_reports::{Document as Page, Record};

use super::{any, grid, xml};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)></style><svg onload=\"x\">'\"&amp;";

fn page(records: &[Record]) -> (String, xml::Content) {
    let page = html::render(&comparison(records, Some("Which strategy is fastest within 512 MiB?")));
    let content = xml::read(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    (page, content)
}

/// Nothing outside of the page is asked for, and nothing in it runs.
fn is_self_contained(content: &xml::Content) -> Result<(), String> {
    for element in &content.elements {
        if ["script", "img", "link", "iframe", "object", "embed", "image", "use", "a"].contains(&element.name.as_str())
            && !(element.name == "a" && element.attribute("href").is_some_and(|href| href.starts_with('#')))
        {
            return Err(format!("{element:?}"));
        }
        if let Some((name, value)) =
            element.attributes.iter().find(|(name, _)| name.starts_with("on") || name == "src" || name == "style")
        {
            return Err(format!("{} has {name}={value}", element.name));
        }
    }
    match content.texts_in("style").iter().any(|style| style.contains("url(") || style.contains("@import")) {
        true => Err("a style fetches something".into()),
        false => Ok(()),
    }
}

#[test]
fn the_page_opens_with_question_answer_machine_and_what_is_missing() {
    let (_, content) = page(&grid::records());
    is_self_contained(&content).unwrap();
    let words = content.texts_in("dt");
    assert_eq!(words[..3], ["ANSWER", "CAUTION", "MACHINE"]);
    let folded = content.texts_in("summary");
    assert_eq!(folded[..4], ["Answer", "Machine", "Not measured, and why", "Not ranked: loss parity failed"]);
    assert_eq!(content.count("details"), folded.len());
    assert_eq!(content.texts_in("h1"), ["synthetic"]);
    let lead: Vec<&xml::Element> = content.elements.iter().filter(|e| e.attribute("class") == Some("lead")).collect();
    assert_eq!(lead.len(), 1, "the question alone stands before the answer");
    let said = content.texts_in("p").join("\n");
    assert!(said.contains("Question: Which strategy is fastest within 512 MiB?"), "{said}");
    assert!(said.contains("Synthetic 3000, 2 cores, Linux."), "{said}");
}

#[test]
fn every_figure_has_its_words_and_two_drawings() {
    let (_, content) = page(&grid::records());
    let figures = content.count("figure");
    assert!(figures >= 8, "{figures}");
    assert_eq!(content.count("figcaption"), figures);
    assert_eq!(content.count("svg"), 2 * figures);
    let drawings = content.elements.iter().filter(|element| element.name == "svg");
    for drawing in drawings {
        assert_eq!(drawing.attribute("role"), Some("img"));
        assert!(drawing.attribute("aria-label").is_some_and(|label| !label.is_empty()));
        assert!(drawing.attribute("viewBox").is_some());
    }
    assert_eq!(content.count("table"), content.count("caption"));
    assert_eq!(
        content.count("table"),
        content.elements.iter().filter(|e| e.attribute("class") == Some("scroll")).count()
    );
}

#[test]
fn tones_are_seen_without_colour() {
    let (page, _) = page(&grid::records());
    assert!(page.contains("class=\"r bad\"><s>40,157</s>"), "a speed that does not count is struck out");
    assert!(page.contains("class=\"r good\">22,505"));
    assert!(page.contains("class=\"warn\">out_of_memory"));
}

#[test]
fn hostile_text_stays_text() {
    let mut records = grid::records();
    for record in &mut records {
        record.name = HOSTILE.into();
        record.command = HOSTILE.into();
        record.notes = vec![HOSTILE.into()];
        record.cell["parallel"]["strategy"] = format!("{}{HOSTILE}", record.cell["parallel"]["strategy"]).into();
        record.environment.insert(HOSTILE.into(), HOSTILE.into());
        record.outcome.reason = HOSTILE.into();
        record.id = format!("{}{HOSTILE}", record.id);
    }
    let (page, content) = page(&records);
    is_self_contained(&content).unwrap();
    assert!(!page.contains("<img") && !page.contains("</script") && !page.contains("onload=\"x"), "{page}");
    assert_eq!(content.texts_in("h1"), [HOSTILE], "and it is shown as it is");
    // A drawing of its own, too.
    for figure in comparison(&records, None).figures() {
        let drawing = zbench_reports::plot::svg::file(figure);
        xml::read(&drawing).unwrap_or_else(|error| panic!("{error}: {drawing}"));
        assert!(!drawing.contains("<img"), "{drawing}");
    }
}

#[test]
fn a_long_table_is_cut_and_says_so() {
    let mut table = Table::new("t", vec![Column::words("a"), Column::numbers("b", "")]);
    for place in 0..1000u64 {
        table.row(vec![Entry::words("x").toned(Tone::Good), Entry::whole(place, place.to_string())]);
    }
    let mut document = Document::new("long");
    document.table(table);
    document.list((0..1000).map(|place| place.to_string()).collect());
    let content = xml::read(&html::render(&document)).unwrap();
    assert_eq!(content.count("tr"), html::MOST_ROWS + 1);
    assert_eq!(content.count("li"), html::MOST_ROWS);
    let notes = content.texts_in("p").join(" ");
    assert!(notes.contains("the first 400 of 1000 rows; --format csv has all"), "{notes}");
    assert!(notes.contains("The first 400 of 1000 items"), "{notes}");
}

#[test]
fn the_same_records_give_the_same_page() {
    assert_eq!(page(&grid::records()).0, page(&grid::records()).0);
    let empty: Page = comparison(&[], None);
    xml::read(&html::render(&empty)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever the records hold: no panic, and a page and drawings that a browser can read.
    #[test]
    fn any_records_give_a_well_formed_page(records in proptest::collection::vec(any::record(), 0..8)) {
        let document = comparison(&records, Some("<>?"));
        let page = html::render(&document);
        let content = xml::read(&page);
        prop_assert!(content.is_ok(), "{:?}", content.err());
        let told: String = content.as_ref().unwrap().elements.iter().flat_map(|element| &element.attributes)
            .filter(|(name, _)| ["x", "y", "x1", "cx", "cy", "r", "d", "width", "height", "viewBox", "transform"].contains(&name.as_str()))
            .map(|(_, value)| value.as_str()).collect();
        prop_assert!(!told.contains("NaN") && !told.contains("inf"), "a place that is no number");
        let contained = is_self_contained(&content.unwrap());
        prop_assert!(contained.is_ok(), "{:?}", contained);
        for figure in document.figures() {
            let drawing = zbench_reports::plot::svg::file(figure);
            prop_assert!(xml::read(&drawing).is_ok(), "{}", drawing);
        }
    }
}
