//! SystemStat and CPUInfo.

use gantry_proto::talos::machine::{CpUsInfo, CpuInfo, CpuStat, SoftIrqStat, SystemStat};
use procfs::Current as _;
use tonic::Status;

use super::unreadable;

/// Reads /proc/stat. Times are in seconds.
///
/// # Errors
/// `INTERNAL` if the file cannot be read.
pub(in super::super) fn system_stat() -> Result<SystemStat, Status> {
    let text = std::fs::read_to_string("/proc/stat")
        .map_err(|error| Status::internal(format!("cannot read /proc/stat: {error}")))?;
    Ok(parse_stat(&text))
}

/// Parses /proc/stat (proc_stat(5)).
fn parse_stat(text: &str) -> SystemStat {
    let mut stat = SystemStat::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let first = numbers.first().copied().unwrap_or(0);
        match name {
            "cpu" => stat.cpu_total = Some(cpu_stat(&numbers)),
            "intr" => (stat.irq_total, stat.irq) = (first, numbers.get(1..).unwrap_or_default().to_vec()),
            "ctxt" => stat.context_switches = first,
            "btime" => stat.boot_time = first,
            "processes" => stat.process_created = first,
            "procs_running" => stat.process_running = first,
            "procs_blocked" => stat.process_blocked = first,
            "softirq" => (stat.soft_irq_total, stat.soft_irq) = (first, Some(soft_irq(&numbers))),
            name if name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok()) => {
                stat.cpu.push(cpu_stat(&numbers));
            }
            _ => {}
        }
    }
    stat
}

/// The times of a core, from clock ticks.
#[expect(clippy::cast_precision_loss, reason = "ticks of 10 ms: exact for millions of years")]
fn cpu_stat(ticks: &[u64]) -> CpuStat {
    let per_second = procfs::ticks_per_second() as f64;
    let seconds = |place: usize| ticks.get(place).map_or(0.0, |ticks| *ticks as f64 / per_second);
    CpuStat {
        user: seconds(0),
        nice: seconds(1),
        system: seconds(2),
        idle: seconds(3),
        iowait: seconds(4),
        irq: seconds(5),
        soft_irq: seconds(6),
        steal: seconds(7),
        guest: seconds(8),
        guest_nice: seconds(9),
    }
}

fn soft_irq(numbers: &[u64]) -> SoftIrqStat {
    let at = |place: usize| numbers.get(place).copied().unwrap_or(0);
    SoftIrqStat {
        hi: at(1),
        timer: at(2),
        net_tx: at(3),
        net_rx: at(4),
        block: at(5),
        block_io_poll: at(6),
        tasklet: at(7),
        sched: at(8),
        hrtimer: at(9),
        rcu: at(10),
    }
}

/// Reads /proc/cpuinfo.
///
/// # Errors
/// `INTERNAL` if the file cannot be read.
pub(in super::super) fn cpu_info() -> Result<CpUsInfo, Status> {
    let info = procfs::CpuInfo::current().map_err(unreadable("/proc/cpuinfo"))?;
    let cpu_info = (0..info.num_cores()).zip(0..).map(|(core, processor)| cpu(&info, core, processor)).collect();
    Ok(CpUsInfo { metadata: None, cpu_info })
}

fn cpu(info: &procfs::CpuInfo, core: usize, processor: u32) -> CpuInfo {
    let text = |name: &str| info.get_field(core, name).unwrap_or_default().to_owned();
    let number = |name: &str| text(name).parse().unwrap_or(0);
    let float = |name: &str| text(name).parse().unwrap_or(0.0);
    let words = |name: &str| text(name).split_whitespace().map(str::to_owned).collect();
    CpuInfo {
        processor,
        vendor_id: text("vendor_id"),
        cpu_family: text("cpu family"),
        model: text("model"),
        model_name: text("model name"),
        stepping: text("stepping"),
        microcode: text("microcode"),
        cpu_mhz: float("cpu MHz"),
        cache_size: text("cache size"),
        physical_id: text("physical id"),
        siblings: number("siblings"),
        core_id: text("core id"),
        cpu_cores: number("cpu cores"),
        apic_id: text("apicid"),
        initial_apic_id: text("initial apicid"),
        fpu: text("fpu"),
        fpu_exception: text("fpu_exception"),
        cpu_id_level: number("cpuid level"),
        wp: text("wp"),
        flags: words("flags"),
        bugs: words("bugs"),
        bogo_mips: float("bogomips"),
        cl_flush_size: number("clflush size"),
        cache_alignment: number("cache_alignment"),
        address_sizes: text("address sizes"),
        power_management: text("power management"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _any = parse_stat(&text);
        }

        #[test]
        fn printed_counters_are_parsed(cores in 0_usize..64, irqs: Vec<u64>, boot: u64) {
            let cpus: String = (0..cores).map(|core| format!("cpu{core} 1 2 3 4\n")).collect();
            let counts: String = irqs.iter().map(|count| format!(" {count}")).collect();
            let stat = parse_stat(&format!("cpu  1 2 3 4\n{cpus}intr 9{counts}\nbtime {boot}\n"));
            prop_assert_eq!((stat.cpu.len(), stat.irq_total, stat.irq, stat.boot_time), (cores, 9, irqs, boot));
        }
    }

    #[test]
    fn ticks_become_seconds() {
        let stat = parse_stat("cpu  200 0 100 400\ncpu0 200 0 100 400 1\nintr 7 1 2\nbtime 5\nsoftirq 9 1 2\nx\n");
        assert_eq!(stat.cpu_total.map(|cpu| (cpu.user, cpu.system, cpu.steal)), Some((2.0, 1.0, 0.0)));
        assert_eq!((stat.cpu.len(), stat.irq_total, &stat.irq[..], stat.boot_time), (1, 7, &[1, 2][..], 5));
        assert_eq!(stat.soft_irq.map(|irq| (irq.hi, irq.timer, irq.rcu)), Some((1, 2, 0)));
    }

    #[test]
    fn this_host_has_cores() {
        let (stat, info) = (system_stat().unwrap(), cpu_info().unwrap());
        assert!(!info.cpu_info.is_empty() && stat.cpu.len() >= info.cpu_info.len());
        assert!(stat.boot_time > 0 && stat.context_switches > 0);
    }
}
