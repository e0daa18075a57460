//! Properties of every layout.

use proptest::prelude::*;

use super::*;
use crate::partition_table::Geometry;

/// As a person would write it.
fn size() -> impl Strategy<Value = String> {
    prop_oneof![
        (1..2000_u64).prop_map(|mib| format!("{mib} MiB")),
        (1..5_000_000_u64).prop_map(|bytes| format!("{bytes} B")),
        (1..=12_u64).prop_map(|percent| format!("{percent}%")),
    ]
}

/// Foreign partitions: (room before, length) in sectors, which need not be aligned.
type There = Vec<(u64, u64)>;

fn there(sector: u64, size: u64, gaps: &There) -> Vec<PartitionFacts> {
    let last = Geometry { size, sector }.usable().end;
    let mut at = MIB / sector;
    let mut parts = Vec::new();
    for (number, (gap, len)) in (1_u32..).zip(gaps) {
        let start = at + gap;
        at = start + len;
        if at * sector > last {
            break;
        }
        parts.push(PartitionFacts {
            number,
            start: start * sector,
            len: len * sector,
            type_guid: Some(Uuid::from_u128(7)),
            partuuid: Some(Uuid::from_u128(100 + u128::from(number))),
            name: format!("p{number}"),
            attributes: 0,
            kernel_name: None,
        });
    }
    parts
}

/// Hostile contents of a disk.
fn any_disk() -> impl Strategy<Value = DiskFacts> {
    let edges = || prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..8 * GIB];
    let partition = (0..6_u32, edges(), edges(), any::<u128>());
    let partitions = proptest::collection::vec(partition, 0..5);
    let signature = (0..SignatureKind::ALL.len(), edges(), proptest::option::of(0..6_u32));
    let signatures = proptest::collection::vec(signature, 0..5);
    (edges(), any::<bool>(), partitions, signatures).prop_map(|(size, gpt, partitions, found)| {
        let partition = |(number, start, len, guid): (u32, u64, u64, u128)| PartitionFacts {
            number,
            start,
            len,
            type_guid: None,
            // Some of them are retained by a document.
            partuuid: Some(Uuid::from_u128(guid % 4)),
            name: String::new(),
            attributes: 0,
            kernel_name: None,
        };
        let signature = |(kind, offset, number): (usize, u64, Option<u32>)| {
            let place = number.map_or(SignaturePlace::Disk, SignaturePlace::Partition);
            let kind = SignatureKind::ALL[kind];
            Signature { uuid: Some("one".to_owned()), ..super::signature(kind, place, offset) }
        };
        let kind = if gpt { TableKind::Gpt } else { TableKind::Mbr };
        let partitions = partitions.into_iter().map(partition).collect();
        DiskFacts {
            table: Some(TableFacts { kind, id: None, partitions, defects: Vec::new() }),
            signatures: found.into_iter().map(signature).collect(),
            ..disk("sda", size)
        }
    })
}

proptest! {
    #[test]
    fn no_disk_makes_planning_panic(disk in any_disk(), size in 0..u64::MAX, adopt: bool) {
        let kept = json!({"part": {"id": "kept", "on": "os", "size": format!("{} B", size >> 8 | 1),
            "retain": {"partuuid": Uuid::from_u128(1), "tolerance": "1 EiB"}}});
        let tables = if adopt { "adopt" } else { "make" };
        let document = document(json!({
            "storage": [kept, part("a", "50%"), part("b", "rest"), part("c", "1 GiB")],
            "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": "any"}},
            "policy": {"tables": tables},
        }));
        if let Ok(layout) = plan(&document, &machine([disk])) {
            let end = layout.disks[0].writable.iter().map(|range| range.end).max();
            prop_assert!(end <= Some(layout.disks[0].size));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn partitions_are_aligned_disjoint_and_beside_retained(
        is_large: bool,
        size in 8 * MIB..64 * GIB,
        sizes in proptest::collection::vec(size(), 0..8),
        rest in proptest::option::of(0..8_usize),
        gaps in proptest::collection::vec((0..4_000_000_u64, 1..3_000_000_u64), 0..5),
        keep in proptest::collection::vec(any::<bool>(), 5),
    ) {
        let sector: u32 = if is_large { 4096 } else { 512 };
        let size = size / 4096 * 4096;
        let existing = there(u64::from(sector), size, &gaps);
        let mut sizes = sizes;
        if let Some(rest) = rest {
            sizes.insert(rest.min(sizes.len()), "rest".to_owned());
        }
        let mut storage: Vec<Value> = Vec::new();
        let mut kept = Vec::new();
        for (existing, _) in existing.iter().zip(&keep).filter(|(_, keep)| **keep) {
            kept.push(existing.clone());
            storage.push(json!({"part": {
                "id": format!("kept{}", existing.number), "on": "os",
                "size": format!("{} B", existing.len), "retain": {"partuuid": existing.partuuid},
            }}));
        }
        for (at, size) in sizes.iter().enumerate() {
            storage.push(part(&format!("new{at}"), size));
        }
        let table = TableFacts {
            kind: TableKind::Gpt, id: None, partitions: existing, defects: Vec::new(),
        };
        let facts = machine([DiskFacts {
            table: Some(table), logical_sector: sector, ..disk("sda", size)
        }]);
        let document = document(json!({"storage": storage}));
        let first = plan(&document, &facts);
        prop_assert_eq!(&first, &plan(&document, &facts));
        let Ok(layout) = first else {
            // Nothing but too little room forbids any of these.
            for found in first.expect_err("refused") {
                prop_assert_eq!(found.code, Code::NoRoom, "{}", found);
            }
            return Ok(());
        };
        let disk = &layout.disks[0];
        let usable = Geometry { size, sector: sector.into() }.usable();
        let partitions = match &disk.work {
            Work::Table(table) => table.partitions.clone(),
            _ => Vec::new(),
        };
        for part in partitions.iter().filter(|part| !part.retained) {
            prop_assert_eq!((part.start % ALIGN, part.len % ALIGN), (0, 0));
            prop_assert!(part.len > 0);
            prop_assert!(part.start >= ALIGN);
            prop_assert!(part.range().end <= usable.end);
        }
        let mut sorted = partitions.clone();
        sorted.sort_by_key(|part| part.start);
        for pair in sorted.windows(2) {
            prop_assert!(pair[0].range().end <= pair[1].start, "{:?}", pair);
        }
        // New partitions are in the written order, except the rest, which is where
        // most is free.
        let in_order = partitions.iter().filter(|part| !part.retained).filter(|part| {
            let rest = sizes.iter().position(|size| size == "rest");
            kept.is_empty() || rest.is_none_or(|rest| part.id.as_str() != format!("new{rest}"))
        });
        let starts: Vec<_> = in_order.map(|part| part.start).collect();
        prop_assert!(starts.is_sorted(), "{:?}", starts);
        // Retained partitions are unchanged, and no writable range overlaps them.
        for kept in &kept {
            let plan = partitions.iter().find(|part| part.partuuid == kept.partuuid.unwrap());
            let plan = plan.expect("it stays");
            prop_assert_eq!((plan.start, plan.len, plan.number), (kept.start, kept.len, kept.number));
            for range in &disk.writable {
                prop_assert!(range.end <= kept.start || range.start >= kept.start + kept.len);
            }
        }
        // Sizes are at least the declared ones, and less than one unit more.
        for (at, said) in sizes.iter().enumerate() {
            let id = format!("new{at}").parse().unwrap();
            let len = layout.partition(&id).expect("it").1.len;
            if let Ok(crate::document::Bytes(bytes)) = said.parse() {
                prop_assert!(len >= bytes && len < bytes + ALIGN);
            }
        }
        // With a rest and nothing in between, nothing is left over.
        if rest.is_some() && kept.is_empty() {
            let all: u64 = partitions.iter().map(|part| part.len).sum();
            prop_assert_eq!(all, usable.end / ALIGN * ALIGN - ALIGN);
        }
        let mut numbers: Vec<_> = partitions.iter().map(|part| part.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), partitions.len());
        let mut guids: Vec<_> = partitions.iter().map(|part| part.partuuid).collect();
        guids.sort_unstable();
        guids.dedup();
        prop_assert_eq!(guids.len(), partitions.len());
        // Once the layout is written, it is as desired.
        if !partitions.is_empty() {
            let again = plan(&document, &after(&layout, &facts)).expect("a plan");
            prop_assert!(again.disks[0].changes.iter().all(|change| change.what == Difference::Kept));
            prop_assert!(again.is_settled());
        }
    }
}
