//! What a package asks for of the machine is held to as far as that goes, and the rest is told.

use super::{run, sandboxes};
use crate::support::ProjectBuilder;

/// Takes more memory than there is to be, writes a larger file, and counts its processors.
const AGENT: &str = "python3 -c 'bytearray(400 << 20)' 2>/dev/null || touch no-memory
python3 -c 'bytearray(100 << 20)' && touch memory
(head -c 3000000 /dev/zero > big) 2>/dev/null || touch no-storage
nproc > cpus
";
const TEST: &str = "#!/bin/sh
cd \"${CASEPACK_WORKDIR:-.}\"
set -- no-memory memory no-storage big
for file; do [ -e $file ] || { echo $file is missing; exit 1; }; done
[ $(wc -c < big) -le 2097152 ] || { echo big is too big; exit 1; }
[ $(cat cpus) = 1 ] || { echo there are $(cat cpus) processors; exit 1; }
echo 1 > \"${CASEPACK_LOGS_DIR:-/logs}/verifier/reward.txt\"
";

#[test]
fn memory_storage_and_processors_are_bounded() {
    for sandbox in sandboxes() {
        let project = ProjectBuilder::new()
            .file(
                "task/task.toml",
                "[environment]\ndocker_image = 'x'\nworkdir = '/workspace'\nmemory_mb = 300\n\
                 storage_mb = 2\ncpus = 0.5\ngpus = 1\n",
            )
            .file("task/instruction.md", "Do it.\n")
            .file("task/environment/agent.sh", AGENT)
            .file("task/tests/test.sh", TEST)
            .build();
        let args = [
            "task",
            "--sandbox",
            sandbox,
            "--agent-command",
            "sh agent.sh",
        ];
        let outcome = run(&project, &args).args(["-v"]).run().assert_code(0);
        for told in [
            "memory_mb of task.toml is held to by each process",
            "storage_mb of task.toml is held to by each file",
            "gpus of task.toml is not held to",
        ] {
            assert!(outcome.stderr.contains(told), "{told}: {outcome}");
        }
        assert!(!outcome.stderr.contains("cpus"), "{outcome}");
    }
}
