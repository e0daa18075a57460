//! The picture itself: columns from left to right in the order of work, a band for each role, and
//! a line of text below each name, so that colours say nothing that is not also written.

use std::fmt::Write as _;

use super::layout::{Layout, layout};
use super::{Dot, Drawing, Mood, Shape};

const MARGIN: usize = 16;
/// Between columns: edges have to bend there.
const GAP: usize = 46;
const ROW: usize = 50;
const BOX: usize = 38;
const LANE_TITLE: usize = 22;
const LANE_GAP: usize = 10;
/// Average width of a character, at most, in the default fonts of browsers.
const CHARACTER: usize = 7;
const MIN_BOX: usize = 90;
/// Visible characters of a name; the tooltip has all of them.
const MAX_SHOWN: usize = 34;
/// Of the line that says how to read it.
const LEGEND: usize = 44;

struct PlacedVertex {
    x: usize,
    y: usize,
    width: usize,
}

pub(super) fn draw(drawing: &Drawing) -> String {
    let layout = layout(drawing);
    let (places, width) = place(drawing, &layout);
    let tops = tops(&layout);
    let bottom = tops.last().copied().unwrap_or(MARGIN);
    let height = bottom + LEGEND;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"Helvetica, Arial, \
         sans-serif\" font-size=\"12\">\n<title>{}</title>\n<defs><marker id=\"arrow\" \
         viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#667085\"/></marker></defs>\n<rect \
         width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n",
        caption(drawing)
    );
    for (at, lane) in layout.lanes.iter().enumerate() {
        let name = match lane.cluster {
            Some(cluster) => drawing.clusters[cluster].as_str(),
            None if at == 0 && drawing.dots.iter().any(|dot| dot.shape != Shape::Task) => {
                "barriers and joins"
            }
            None => "without a role",
        };
        let top = tops[at];
        let bottom = tops[at + 1] - LANE_GAP;
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"8\" \
             fill=\"#f6f7f9\" stroke=\"#e0e3e8\"/>\n<text x=\"{}\" y=\"{}\" fill=\"#475467\" \
             font-weight=\"bold\">{}</text>",
            MARGIN / 2,
            width - MARGIN,
            bottom - top,
            MARGIN,
            top + 15,
            escape(name)
        );
    }
    for (from, to) in &drawing.edges {
        edge(&mut text, &places[*from], &places[*to]);
    }
    for (dot, place) in drawing.dots.iter().zip(&places) {
        vertex(&mut text, dot, place);
    }
    legend(&mut text, drawing, bottom + 6);
    text.push_str("</svg>\n");
    text
}

fn caption(drawing: &Drawing) -> String {
    let mut caption = format!("{} vertices, {} edges", drawing.dots.len(), drawing.edges.len());
    if drawing.implied > 0 {
        let _ =
            write!(caption, "; {} edges that follow from others are not drawn", drawing.implied);
    }
    caption
}

/// Where each lane begins, and where the last one ends.
fn tops(layout: &Layout) -> Vec<usize> {
    let mut top = MARGIN;
    let mut tops = vec![top];
    for lane in &layout.lanes {
        top += LANE_TITLE + lane.height * ROW + LANE_GAP;
        tops.push(top);
    }
    tops
}

fn place(drawing: &Drawing, layout: &Layout) -> (Vec<PlacedVertex>, usize) {
    let mut widths = vec![0; layout.width];
    for (at, dot) in drawing.dots.iter().enumerate() {
        let width = &mut widths[layout.columns[at]];
        *width = (*width).max(box_width(dot));
    }
    let mut x = MARGIN + MARGIN / 2;
    let mut starts = Vec::with_capacity(widths.len());
    for width in &widths {
        starts.push(x);
        x += width + GAP;
    }
    let tops = tops(layout);
    let mut fill = vec![vec![0; layout.lanes.len()]; layout.width];
    for at in 0..drawing.dots.len() {
        fill[layout.columns[at]][layout.lane_of[at]] += 1;
    }
    let places = drawing.dots.iter().enumerate().map(|(at, dot)| {
        let column = layout.columns[at];
        let lane = layout.lane_of[at];
        let width = box_width(dot);
        // Short columns are in the middle of their lane.
        let slack = (layout.lanes[lane].height - fill[column][lane]) * ROW / 2;
        PlacedVertex {
            x: starts[column] + (widths[column] - width) / 2,
            y: tops[lane] + LANE_TITLE + slack + layout.rows[at] * ROW + (ROW - BOX) / 2,
            width,
        }
    });
    (places.collect(), x - GAP + MARGIN + MARGIN / 2)
}

fn box_width(dot: &Dot) -> usize {
    let name = shown(&dot.name).chars().count() * CHARACTER;
    let detail = shown(&dot.detail()).chars().count() * (CHARACTER - 1);
    (name.max(detail) + 20).max(MIN_BOX)
}

fn shown(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN {
        return text.to_owned();
    }
    text.chars().take(MAX_SHOWN - 1).chain(['…']).collect()
}

fn edge(text: &mut String, from: &PlacedVertex, to: &PlacedVertex) {
    let x1 = from.x + from.width;
    let y1 = from.y + BOX / 2;
    let x2 = to.x;
    let y2 = to.y + BOX / 2;
    let bend = (x2.abs_diff(x1) / 2).clamp(24, 160);
    let c1 = x1 + bend;
    let c2 = x2.saturating_sub(bend);
    let _ = writeln!(
        text,
        "<path d=\"M{x1} {y1}C{c1} {y1} {c2} {y2} {x2} {y2}\" fill=\"none\" stroke=\"#98a2b3\" \
         stroke-width=\"1.2\" marker-end=\"url(#arrow)\"/>"
    );
}

fn vertex(text: &mut String, dot: &Dot, place: &PlacedVertex) {
    let PlacedVertex { x, y, width } = place;
    let (fill, line) = dot.mood().colours();
    let round = match dot.shape {
        Shape::Task => 5,
        Shape::Barrier => 0,
        Shape::Join => BOX / 2,
    };
    let dashes = if dot.mood() == Mood::Skipped { " stroke-dasharray=\"4 3\"" } else { "" };
    let weight = if dot.shape == Shape::Barrier { 2 } else { 1 };
    let detail = dot.detail();
    let whole =
        if detail.is_empty() { dot.name.clone() } else { format!("{}: {detail}", dot.name) };
    let middle = x + width / 2;
    let name_y = if detail.is_empty() { y + BOX / 2 + 4 } else { y + 16 };
    let _ = writeln!(
        text,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BOX}\" \
         rx=\"{round}\" fill=\"{fill}\" stroke=\"{line}\" stroke-width=\"{weight}\"{dashes}/><text \
         x=\"{middle}\" y=\"{name_y}\" text-anchor=\"middle\" fill=\"#101828\">{}</text>",
        escape(&whole),
        escape(&shown(&dot.name))
    );
    if !detail.is_empty() {
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\" \
             fill=\"#475467\">{}</text>",
            y + 30,
            escape(&shown(&detail))
        );
    }
    text.push_str("</g>\n");
}

fn legend(text: &mut String, drawing: &Drawing, top: usize) {
    let mut x = MARGIN;
    let moods = Mood::ALL.iter().filter(|mood| {
        **mood != Mood::Planned && drawing.dots.iter().any(|dot| dot.moods.contains_key(*mood))
    });
    for mood in moods {
        let (fill, line) = mood.colours();
        let name = mood.as_str();
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{fill}\" \
             stroke=\"{line}\"/><text x=\"{}\" y=\"{}\" fill=\"#475467\">{name}</text>",
            x + 17,
            top + 11
        );
        x += 17 + name.len() * CHARACTER + 16;
    }
    let _ = writeln!(
        text,
        "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#667085\" font-size=\"11\">{}</text>",
        top + 29,
        caption(drawing)
    );
}

/// For text and attributes; characters that XML cannot have become spaces.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
