use proptest::prelude::*;

use super::*;

const HERE: Uuid = Uuid::from_u128(0x1111);
const GONE: Uuid = Uuid::from_u128(0x2222);

fn entry(partuuid: Uuid) -> Entry {
    let file = "/EFI/BOOT/BOOTX64.EFI".to_owned();
    Entry { partuuid, number: 2, start: 2048, sectors: 131_072, file, arguments: None }
}

fn network() -> Vec<u8> {
    let mac = DevicePathNode { kind: MESSAGING, sub: 11, data: vec![0; 33] };
    let option =
        LoadOption { attributes: ACTIVE, label: "PXE".to_owned(), path: vec![mac], data: vec![] };
    option.encode()
}

fn other() -> Vec<u8> {
    LoadOption { label: "Windows".to_owned(), ..entry(Uuid::from_u128(7)).option() }.encode()
}

/// The variables after the changes.
fn applied(now: &Variables, changes: &Changes) -> Variables {
    let mut after = now.clone();
    for (number, entry) in changes.entries() {
        after.entries.insert(*number, entry.option().encode());
    }
    changes.remove.iter().for_each(|number| drop(after.entries.remove(number)));
    after.order.clone_from(&changes.order);
    after
}

#[test]
fn entry_bytes_match_those_of_firmware() {
    let bytes = entry(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff)).option().encode();
    let mut wanted = vec![1, 0, 0, 0];
    // HD(2,GPT,00112233-4455-6677-8899-aabbccddeeff,0x800,0x20000)/\EFI\BOOT\BOOTX64.EFI
    let path = 42 + 4 + 2 * 22 + 4;
    wanted.extend([path, 0]);
    wanted.extend(b"h\0o\0i\0s\0t\0\0\0");
    wanted.extend([4, 1, 42, 0, 2, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
    wanted.extend([0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66]);
    wanted.extend([0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 2, 2]);
    wanted.extend([4, 4, 48, 0]);
    wanted.extend(r"\EFI\BOOT\BOOTX64.EFI".bytes().flat_map(|byte| [byte, 0]).chain([0, 0]));
    wanted.extend([0x7f, 0xff, 4, 0]);
    assert_eq!(bytes, wanted);
    let decoded = LoadOption::decode(&bytes).expect("it can be read");
    assert_eq!(
        decoded.partuuid(),
        Some(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff))
    );
}

#[test]
fn boot_order_puts_disk_first_or_after_network_without_dangling() {
    let entries = [(0, network()), (1, other()), (4, network())].into();
    // 9 is not there, and 1 is named two times.
    let now = Variables { entries, order: vec![1, 9, 0, 1, 4] };
    let changes = |order| decide(&now, &entry(HERE), order, |one| one == HERE);
    let first = changes(BootOrder::DiskFirst).expect("there is something to do");
    assert_eq!((first.set, first.order), (Some((2, entry(HERE))), vec![2, 1, 0, 4]));
    let behind = changes(BootOrder::NetworkFirst).expect("there is something to do");
    assert_eq!(behind.order, [0, 4, 2, 1]);
    assert_eq!(changes(BootOrder::Leave), None);
}

#[test]
fn own_boot_entry_is_replaced_and_foreign_ones_stay() {
    let old = |partuuid| entry(partuuid).option().encode();
    let entries = [(3, old(GONE)), (5, other()), (6, old(GONE)), (7, vec![1, 2])].into();
    let now = Variables { entries, order: vec![5, 6, 3, 7] };
    let is_there = |one| one == HERE;
    let changes = decide(&now, &entry(HERE), BootOrder::DiskFirst, is_there).expect("changes");
    assert_eq!(changes.set, Some((3, entry(HERE))));
    assert_eq!((changes.remove.as_slice(), changes.order.as_slice()), (&[6][..], &[3, 5, 7][..]));
    let after = applied(&now, &changes);
    assert_eq!(decide(&after, &entry(HERE), BootOrder::DiskFirst, is_there), None);
}

fn nodes() -> impl Strategy<Value = Vec<DevicePathNode>> {
    let node = (1..6_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..60));
    let node = node.prop_map(|(kind, sub, data)| DevicePathNode { kind, sub, data });
    prop::collection::vec(node, 0..5)
}

/// Entries as a machine may have them: ours, old ones of ours, those of others, and nonsense.
fn some_entry() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(entry(HERE).option().encode()),
        Just(entry(GONE).option().encode()),
        Just(network()),
        Just(other()),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn written_value_is_read_again(
        attributes in any::<u32>(),
        label in "[^\0]{0,20}",
        path in nodes(),
        data in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let option = LoadOption { attributes, label, path, data };
        prop_assert_eq!(LoadOption::decode(&option.encode()), Some(option));
    }

    #[test]
    fn invalid_variables_are_ignored(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = LoadOption::decode(&bytes);
    }

    #[test]
    fn applied_changes_leave_nothing_to_change(
        entries in prop::collection::btree_map(0..12_u16, some_entry(), 0..8),
        order in prop::collection::vec(0..14_u16, 0..10),
        is_network_first in any::<bool>(),
    ) {
        let policy =
            if is_network_first { BootOrder::NetworkFirst } else { BootOrder::DiskFirst };
        let now = Variables { entries, order };
        let is_there = |one| one == HERE || one == Uuid::from_u128(7);
        let Some(changes) = decide(&now, &entry(HERE), policy, is_there) else { return Ok(()) };
        let after = applied(&now, &changes);
        prop_assert_eq!(decide(&after, &entry(HERE), policy, is_there), None);
        // Everything that is tried is there, once, and ours is one of them.
        let unique: BTreeSet<u16> = after.order.iter().copied().collect();
        prop_assert_eq!(unique.len(), after.order.len());
        prop_assert!(after.order.iter().all(|number| after.entries.contains_key(number)));
        let wanted = entry(HERE).option().encode();
        let ours = after.order.iter().position(|number| after.entries[number] == wanted);
        let ours = ours.expect("it is tried");
        let network = |number: &u16| {
            LoadOption::decode(&after.entries[number]).is_some_and(|option| option.is_network())
        };
        let before = &after.order[..ours];
        let behind = &after.order[ours + 1..];
        prop_assert!(before.iter().all(network));
        prop_assert!(before.is_empty() || is_network_first);
        prop_assert!(!is_network_first || !behind.iter().any(network));
        // Nothing of others is gone, and among themselves they are tried as before.
        for (number, bytes) in &now.entries {
            let is_ours = LoadOption::decode(bytes).is_some_and(|option| option.label == LABEL);
            prop_assert!(is_ours || after.entries.get(number) == Some(bytes));
        }
        let rest: Vec<u16> = behind.iter().filter(|number| !network(number)).copied().collect();
        let mut seen = BTreeSet::new();
        let was = now.order.iter().filter(|number| rest.contains(number) && seen.insert(**number));
        prop_assert_eq!(was.copied().collect::<Vec<_>>(), rest);
    }
}

#[test]
fn copies_have_entries_behind_the_first() {
    const COPY: Uuid = Uuid::from_u128(0x3333);
    let is_there = |one| one == HERE || one == COPY;
    let wanted = [entry(HERE), entry(COPY)];
    let entries = [(0, network()), (1, other()), (3, entry(GONE).option().encode())].into();
    let now = Variables { entries, order: vec![1, 3, 0] };
    let changes = |now: &Variables, order| decide_all(now, &wanted, order, is_there);
    let first = changes(&now, BootOrder::DiskFirst).expect("changes");
    let set: Vec<_> = first.entries().cloned().collect();
    assert_eq!(set, [(3, entry(HERE)), (2, entry(COPY))]);
    assert_eq!((&first.order[..], &first.remove[..]), (&[3, 2, 1, 0][..], &[][..]));
    let after = applied(&now, &first);
    assert_eq!(changes(&after, BootOrder::DiskFirst), None);
    assert_eq!(changes(&after, BootOrder::NetworkFirst).expect("changes").order, [0, 3, 2, 1]);
    // The entry of a lost copy is written again, and no other.
    let mut lost = after.clone();
    lost.entries.remove(&2);
    let again = changes(&lost, BootOrder::DiskFirst).expect("changes");
    assert_eq!(again.entries().cloned().collect::<Vec<_>>(), [(2, entry(COPY))]);
}
