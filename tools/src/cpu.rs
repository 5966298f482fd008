//! The name of the CPU, with what tells apart CPUs of the same name.

use std::ops::RangeInclusive;

/// The keys of numbers that identify a CPU: those of x86, and those of Arm, which has no name
/// there.
const NUMBERS: [(&str, &str); 6] = [
    ("cpu family", "family"),
    ("model", "model"),
    ("stepping", "stepping"),
    ("CPU implementer", "implementer"),
    ("CPU part", "part"),
    ("CPU revision", "revision"),
];

/// Models of AMD's families. Linux has the same ranges in `arch/x86/kernel/cpu/amd.c`.
const AMD: &[(u32, RangeInclusive<u32>, &str)] = &[
    (0x17, 0x00..=0x2f, "Zen"),
    (0x17, 0x30..=0x4f, "Zen 2"),
    (0x17, 0x50..=0x5f, "Zen"),
    (0x17, 0x60..=0xaf, "Zen 2"),
    (0x19, 0x00..=0x0f, "Zen 3"),
    (0x19, 0x10..=0x1f, "Zen 4"),
    (0x19, 0x20..=0x5f, "Zen 3"),
    (0x19, 0x60..=0xaf, "Zen 4"),
    (0x1a, 0x00..=0x2f, "Zen 5"),
    (0x1a, 0x40..=0x4f, "Zen 5"),
    (0x1a, 0x50..=0x5f, "Zen 6"),
    (0x1a, 0x60..=0x7f, "Zen 5"),
    (0x1a, 0x80..=0xaf, "Zen 6"),
    (0x1a, 0xc0..=0xcf, "Zen 6"),
];

/// Models of Intel's family 6, as Linux's `arch/x86/include/asm/intel-family.h` has them.
const INTEL: &[(&[u32], &str)] = &[
    (&[0x2a, 0x2d], "Sandy Bridge"),
    (&[0x3a, 0x3e], "Ivy Bridge"),
    (&[0x3c, 0x3f, 0x45, 0x46], "Haswell"),
    (&[0x3d, 0x47, 0x4f, 0x56], "Broadwell"),
    (&[0x4e, 0x5e], "Skylake"),
    (&[0x8e, 0x9e], "Kaby Lake"),
    (&[0xa5, 0xa6], "Comet Lake"),
    (&[0x6a, 0x6c, 0x7d, 0x7e], "Ice Lake"),
    (&[0x8c, 0x8d], "Tiger Lake"),
    (&[0xa7], "Rocket Lake"),
    (&[0x97, 0x9a, 0xbe], "Alder Lake"),
    (&[0xb7, 0xba, 0xbf], "Raptor Lake"),
    (&[0xaa, 0xac], "Meteor Lake"),
    (&[0xb5, 0xc5, 0xc6], "Arrow Lake"),
    (&[0xbd], "Lunar Lake"),
    (&[0x8f], "Sapphire Rapids"),
    (&[0xcf], "Emerald Rapids"),
    (&[0xad, 0xae], "Granite Rapids"),
    (&[0xaf], "Sierra Forest"),
];

/// Parts of implementer 0x41, which is Arm.
const ARM: &[(u32, &str)] = &[
    (0xd03, "Cortex-A53"),
    (0xd05, "Cortex-A55"),
    (0xd08, "Cortex-A72"),
    (0xd0b, "Cortex-A76"),
    (0xd0c, "Neoverse N1"),
    (0xd40, "Neoverse V1"),
    (0xd41, "Cortex-A78"),
    (0xd44, "Cortex-X1"),
    (0xd49, "Neoverse N2"),
    (0xd4f, "Neoverse V2"),
    (0xd83, "Neoverse V3AE"),
    (0xd84, "Neoverse V3"),
    (0xd8e, "Neoverse N3"),
];

/// The name, the microarchitecture if it is known, and the numbers, from the text of
/// `/proc/cpuinfo`; without it, the architecture.
pub(crate) fn name(cpuinfo: &str) -> String {
    let name = value(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
    let numbers = NUMBERS.iter().filter_map(|(key, short)| Some(format!("{short} {}", value(cpuinfo, key)?)));
    let numbers = numbers.collect::<Vec<_>>().join(" ");
    let known = [microarchitecture(cpuinfo).unwrap_or_default().to_owned(), numbers];
    match known.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ") {
        known if known.is_empty() => name.to_owned(),
        known => format!("{name} ({known})"),
    }
}

/// The value of a key. Each CPU repeats the keys; only the first CPU's values are used.
fn value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| line.split_once(':').filter(|(k, _)| k.trim() == key).map(|(_, v)| v.trim()))
}

fn microarchitecture(cpuinfo: &str) -> Option<&'static str> {
    let number = |key| match value(cpuinfo, key)? {
        text if text.starts_with("0x") => u32::from_str_radix(&text[2..], 16).ok(),
        text => text.parse().ok(),
    };
    match (value(cpuinfo, "vendor_id"), number("CPU implementer")) {
        (Some("AuthenticAMD"), _) => {
            let (family, model) = (number("cpu family")?, number("model")?);
            AMD.iter().find(|(own, models, _)| *own == family && models.contains(&model)).map(|&(.., name)| name)
        }
        (Some("GenuineIntel"), _) if number("cpu family") == Some(6) => match (number("model")?, number("stepping")) {
            // Three generations of servers share the number.
            (0x55, Some(0..=4)) => Some("Skylake"),
            (0x55, Some(5..=9)) => Some("Cascade Lake"),
            (0x55, Some(_)) => Some("Cooper Lake"),
            (model, _) => INTEL.iter().find(|(models, _)| models.contains(&model)).map(|&(_, name)| name),
        },
        (_, Some(0x41)) => {
            let part = number("CPU part")?;
            ARM.iter().find(|(own, _)| *own == part).map(|&(_, name)| name)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_one_name_are_told_apart() {
        let amd = |family: u32, model: u32| {
            format!(
                "vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nmodel\t: 3\n"
            )
        };
        assert_eq!(name(&amd(26, 2)), "AMD EPYC (Zen 5, family 26 model 2 stepping 1)");
        assert_eq!(name(&amd(25, 17)), "AMD EPYC (Zen 4, family 25 model 17 stepping 1)");
        assert_eq!(name(&amd(25, 1)), "AMD EPYC (Zen 3, family 25 model 1 stepping 1)");
        assert_eq!(name(&amd(99, 1)), "AMD EPYC (family 99 model 1 stepping 1)", "an unknown one is not named");
        let intel = |model: u32, stepping: u32| {
            name(&format!(
                "vendor_id: GenuineIntel\ncpu family: 6\nmodel: {model}\nmodel name: Xeon\nstepping: {stepping}\n"
            ))
        };
        assert_eq!(intel(0x8f, 8), "Xeon (Sapphire Rapids, family 6 model 143 stepping 8)");
        assert_eq!(intel(0x55, 7), "Xeon (Cascade Lake, family 6 model 85 stepping 7)");
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\n";
        let numbers = "(Neoverse V1, implementer 0x41 part 0xd40 revision 1)";
        assert_eq!(name(arm), format!("{} {numbers}", std::env::consts::ARCH));
        assert_eq!(name(""), std::env::consts::ARCH);
    }

    #[test]
    fn no_cpu_is_in_two_lists() {
        let models: Vec<_> = INTEL.iter().flat_map(|(models, _)| *models).collect();
        assert!(models.iter().all(|model| models.iter().filter(|other| *other == model).count() == 1), "{models:x?}");
        let is_ascending =
            |pair: &[(u32, RangeInclusive<u32>, &str)]| (pair[0].0, *pair[0].1.end()) < (pair[1].0, *pair[1].1.start());
        assert!(AMD.windows(2).all(is_ascending));
    }
}
